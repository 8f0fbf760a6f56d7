"""Waits for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_S = 60.0
"""What takes longer hangs."""


def until(ready: Callable[[], object]) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + HANG_S
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.01)
