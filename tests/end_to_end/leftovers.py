"""Finds files of a run that are left in shared memory. Other processes of the machine may use shared memory too."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from olmorl import config
from olmorl.actors.vllm_engine import reaper
from olmorl.deploy import credentials
from tests.end_to_end.launching import Launch

PATIENCE_S = 150
"""New files of other processes are unused for a moment. The files of their libraries exist as long as they run."""
_OF_LIBRARIES = ("/dev/shm/deepspeed_", "/dev/shm/torch_", "/dev/shm/plasma")


def staged(run: Launch) -> Path:
    """The run's own folder in shared memory."""
    return Path("/dev/shm", f"olmorl-{credentials.run_id(config.load(run.recipe, []).run_dir)}")


def unused() -> set[Path]:
    """Files of engines and similar programs that no process has open."""
    there = {file for file in Path("/dev/shm").iterdir() if str(file).startswith(reaper.NAMES)}
    return there - reaper.shared_memory(psutil.pids())


def until_clean(run: Launch, before: set[Path]) -> None:
    """Until the run has left nothing, given what was `unused` before it. Raises AssertionError."""
    deadline = time.monotonic() + PATIENCE_S
    while left := _left(run, before):
        assert time.monotonic() < deadline, sorted(map(str, left))
        time.sleep(0.5)


def _left(run: Launch, before: set[Path]) -> set[Path]:
    libraries = {file for file in Path("/dev/shm").iterdir() if str(file).startswith(_OF_LIBRARIES)}
    own = {staged(run)} if staged(run).exists() else set()
    return own | libraries | unused() - before
