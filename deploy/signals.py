"""SIGINT and SIGTERM: a first one asks for a stop, a second ends the run at once, and none cuts its clean-up short."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_ONE_SIGNAL_S = 1.0
"""So soon after another it is the same one: a scheduler tells every process, and a script passes it on."""


class Signals:
    """What people have asked for by them."""

    def __init__(self) -> None:
        self.stop_asked = asyncio.Event()
        self._count, self._last_at = 0, -math.inf

    @contextmanager
    def heard(self) -> Iterator[None]:
        """In the task of the run, which a second signal cancels."""
        loop, run = asyncio.get_running_loop(), asyncio.current_task()
        assert run is not None

        def on_signal() -> None:
            since, self._last_at = self._last_at, time.monotonic()
            if self._last_at - since < _ONE_SIGNAL_S:
                return
            self._count += 1
            self.stop_asked.set()
            if self._count == 2:
                run.cancel()

        for number in _NUMBERS:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in _NUMBERS:
                loop.remove_signal_handler(number)


@contextmanager
def unheard() -> Iterator[None]:
    """While a run cleans up, which has its deadlines. Not by SIG_IGN: what is started here would inherit that."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number in _NUMBERS:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
