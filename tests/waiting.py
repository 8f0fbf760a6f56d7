"""Waits for something that another process or thread does, and measures what a busy machine does not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from pytest import MonkeyPatch

from olmorl import deadlines

HANG_S = 60.0
"""What takes longer hangs."""


def until(ready: Callable[[], object]) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + HANG_S
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def lives(process: psutil.Process | int) -> bool:
    """Whether a process runs, by itself or its pid. It may end between two looks; a zombie has ended."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def with_command(processes: Iterable[psutil.Process], part: str) -> list[psutil.Process]:
    """The processes whose command line has a part. Those that have ended have none."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if part in " ".join(process.cmdline()):
                found.append(process)
    return found


def seconds() -> float:
    """A clock of this thread. It stands still while the thread is ready to run and waits for a core."""
    waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.monotonic() - waited_ns / 1e9


def set_deadline(monkeypatch: MonkeyPatch, name: str, value: float) -> None:
    """Change a constant of `deadlines`, or a field of its `BUILT_IN`, until the end of the test."""
    if name in deadlines.Deadlines._fields:
        monkeypatch.setattr(deadlines, "BUILT_IN", deadlines.BUILT_IN._replace(**{name: value}))
    else:
        monkeypatch.setattr(deadlines, name, value)
