"""Publishing in the background: the learner pays for the snapshot, the next step hides the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from olmorl.clock import Clock
from olmorl.messages import Version
from olmorl.ports import BatchSource, NamedBuffer, WeightStore

T = TypeVar("T")
KEPT_VERSIONS = 2
"""The newest one, and the one before it that a node may still be fetching."""


class Publisher:
    """Versions come out one at a time, in order: a publish waits for the one before."""

    def __init__(self, store: WeightStore, source: BatchSource, clock: Clock) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._under_way: asyncio.Task[None] | None = None
        self._kept: list[Version] = []

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._finish()
        elif self._under_way:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def publish(self, version: Version, buffers: Sequence[NamedBuffer]) -> None:
        """Start to publish a snapshot; ranks without one do nothing. Raises what the publish before ran into."""
        await self._finish()
        if buffers:
            self._under_way = asyncio.create_task(self._publish(version, buffers))

    async def meanwhile(self, wait: Coroutine[Any, Any, T]) -> T:
        """Await something else; a publish that fails meanwhile is raised at once, as nothing may come without it."""
        waiting = asyncio.create_task(wait)
        try:
            if self._under_way:
                await asyncio.wait([waiting, self._under_way], return_when=asyncio.FIRST_COMPLETED)
                if self._under_way.done():
                    self._under_way.result()
            return await waiting
        finally:
            waiting.cancel()

    async def _finish(self) -> None:
        if self._under_way:
            await self._under_way

    async def _publish(self, version: Version, buffers: Sequence[NamedBuffer]) -> None:
        started = self._clock.now()
        await asyncio.to_thread(self._store.publish, version, buffers)
        await self._source.published(version, self._clock.now() - started)
        self._kept = [*self._kept, version][-KEPT_VERSIONS:]
        await asyncio.to_thread(self._store.discard, self._kept)
