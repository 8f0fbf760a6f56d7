"""Agents from the package index, unchanged, in a virtual environment of their own, and as docs/episodes.md says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGES = ("mini-swe-agent==2.4.6", "smolagents[openai]==1.26.0")
VERIFIERS = ("verifiers[openenv]==0.4.0", "openenv==0.4.1", "uv")
PAGE = Path(__file__).parents[1] / "docs" / "episodes.md"


def _of_page() -> str:
    """The command at the end of the page, with `{bin}` for the folder of its programs."""
    *_, recipe = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    command: str = tomllib.loads(recipe)["episodes"]["agent"]
    assert "{" not in command
    return command.replace("/opt/mini/bin", "{bin}")


MINI = _of_page()
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
