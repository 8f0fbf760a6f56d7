"""Waking those who wait for the assembler."""

from __future__ import annotations

import asyncio

from olmorl.errors import RunEnded


class Bell:
    """Whoever waits hears of every change, and of the error that ended the background work."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def follow(self, work: asyncio.Task[None]) -> None:
        """From now on an end of `work` wakes everybody too."""
        self._work = work
        self.ring()

    def ring(self) -> None:
        """Something changed."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def heard(self) -> None:
        """Wait for the next change.

        Raises:
            RunEnded: the work was cancelled.
            OlmoRLError: what else ended it.
        """
        ring, work = asyncio.create_task(self._rung.wait()), self._work
        try:
            await asyncio.wait([ring, work] if work else [ring], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ring.cancel()
        if work and work.cancelled():
            raise RunEnded("the assembler was stopped")
        if work and work.done():
            work.result()
