"""Every benchmark starts: its settings are still valid ones of the service."""

from __future__ import annotations

import json
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


def test_the_parts_for_a_gpu_run_with_a_small_model_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--tiny", "--only", "plain", "--models", tmp_path, "--timeout", "250", "--json", out]
    tried = subprocess.run([sys.executable, FOLDER / "gpu_learner.py", *words], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr
    part = json.loads(out.read_text())["parts"]["plain"]
    assert part["row_tokens"] == 8448 and len(part["tokens_per_s"]) == 2 and part["planned_peak_gib"] > 0


def test_the_learner_is_measured_without_an_engine() -> None:
    code = "import sys, gpu_learner; print([name for name in ('vllm', 'ray', 'redis') if name in sys.modules])"
    asked = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert asked.stdout.strip() == "[]", asked.stderr
