"""Semaphores are gone from shared memory before their process is, and work on until then."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from olmorl.deploy import semaphores


def names() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("sem.mp-*")}


def test_own_semaphores_are_unlinked_and_still_work() -> None:
    before = names()
    lock = multiprocessing.get_context("spawn").Lock()
    made = names() - before
    assert len(made) == 1
    semaphores.unlink_own()
    assert not made & names()
    with lock:
        assert not lock.acquire(block=False)
