"""Writing to a disk that may be full: the run waits at the write until there is room."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from olmorl.clock import Clock
from olmorl.errors import DiskFull
from olmorl.learner.waits import Waits
from olmorl.messages import Owner

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 1.0
"""Time between two attempts."""


class DiskWriter:
    """Repeats a write while the disk is full, until a deadline."""

    def __init__(self, clock: Clock, deadline_s: float, waits: Waits | None = None) -> None:
        """A write that waits for room is listed in `waits`."""
        self._clock = clock
        self._deadline_s = deadline_s
        self._waits = waits

    async def write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Await `write()` until it succeeds; each failure must leave nothing behind.

        Raises:
            DiskFull: there was no room within the deadline.
        """
        try:
            return await write()
        except DiskFull as error:
            log.warning("waiting for room: %s", error)
            what, ends_at = f"room on the disk ({error})", self._clock.now() + self._deadline_s
        if self._waits:
            self._waits.begin(what, Owner.RUN_DIRECTORY, self._deadline_s, urgent=True)
        try:
            return await self._again(write, ends_at)
        finally:
            if self._waits:
                self._waits.end(what)

    async def _again(self, write: Callable[[], Awaitable[T]], ends_at: float) -> T:
        while True:
            await self._clock.sleep(RETRY_S)
            try:
                return await write()
            except DiskFull as error:
                if self._clock.now() >= ends_at:
                    raise DiskFull(
                        f"{error}, then continue with --resume (there was none within {self._deadline_s:g} s)"
                    ) from None
