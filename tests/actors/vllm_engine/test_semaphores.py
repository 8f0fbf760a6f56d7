"""Semaphores are gone from shared memory before their process is, and work on until then."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from olmorl.actors.vllm_engine import reaper


def test_own_semaphores_are_unlinked_and_still_work() -> None:
    lock: Any = multiprocessing.get_context("spawn").Lock()
    path = Path("/dev/shm", f"sem.{lock._semlock.name.removeprefix('/')}")
    assert path.exists()
    reaper.unlink_own_semaphores()
    assert not path.exists()
    with lock:
        assert not lock.acquire(block=False)
