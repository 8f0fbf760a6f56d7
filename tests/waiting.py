"""Waits for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def set_deadline(monkeypatch: MonkeyPatch, name: str, value: float) -> None:
    """Change a constant of `deadlines`, or a field of its `BUILT_IN`, until the end of the test."""
    if name in deadlines.Deadlines._fields:
        monkeypatch.setattr(deadlines, "BUILT_IN", deadlines.BUILT_IN._replace(**{name: value}))
    else:
        monkeypatch.setattr(deadlines, name, value)
