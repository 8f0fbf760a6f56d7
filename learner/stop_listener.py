"""Interrupts the current step on a request to stop the run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from olmorl.errors import OlmoRLError
from olmorl.ports import BatchSource, Trainer


class StopListener:
    """While it is open, rank 0 listens for a stop and then interrupts the trainer."""

    def __init__(self, rank: int, trainer: Trainer, source: BatchSource) -> None:
        self._rank = rank
        self._trainer = trainer
        self._source = source
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StopListener:
        if self._rank == 0:
            self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listening:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        # If the orchestrator is lost, the calls that need its answer raise the error.
        with suppress(OlmoRLError):
            while not await self._source.stop_asked():
                pass
            self._trainer.interrupt()
