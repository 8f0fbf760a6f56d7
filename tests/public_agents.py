"""Agents from the package index, unchanged, in a virtual environment of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGES = ("mini-swe-agent==2.4.6", "smolagents[openai]==1.26.0")
VERIFIERS = ("verifiers[openenv]==0.4.0", "openenv==0.4.1", "uv")
MINI = (
    "MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_GLOBAL_CONFIG_DIR={folder} "
    "{bin}/mini -m openai/$OPENAI_MODEL -t 'Say hello.' -y --exit-immediately -o {folder}/trajectory.json"
)
SMOL = f"{{bin}}/python {Path(__file__).parent}/actors/episodes/smol_agent.py"


def installed(folder: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """Install packages; returns the folder of their programs. The test is skipped where they cannot be installed."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    python = folder / "bin" / "python"
    for command in (
        ["venv", str(folder), "--clear", "--python", sys.executable],
        ["pip", "install", "--python", str(python), *packages],
    ):
        done = subprocess.run([uv, *command], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{', '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "bin"
