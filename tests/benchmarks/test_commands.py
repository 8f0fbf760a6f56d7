"""Every benchmark starts: its settings are still valid ones of the service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "measure.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_benchmark_explains_its_options(command: str) -> None:
    asked = subprocess.run([sys.executable, FOLDER / command, "--help"], capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    assert "--json" in asked.stdout
