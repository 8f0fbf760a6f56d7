"""Publishing in the background: the learner pays for the snapshot, the next step hides the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from olmorl.clock import Clock, within
from olmorl.errors import DeadlinePassed
from olmorl.learner.background import Background
from olmorl.messages import Version
from olmorl.ports import BatchSource, NamedBuffer, WeightStore

P = ParamSpec("P")
T = TypeVar("T")
KEPT_VERSIONS = 2
"""The newest one, and the one before it that a node may still be fetching."""
TEND_S = 5.0
"""How often what is published is looked after."""
STORE_DEADLINE_S = 1800.0
_log = logging.getLogger(__name__)


class Publisher(Background):
    """Versions come out one at a time, in order: a publish waits for the one before."""

    def __init__(self, store: WeightStore, source: BatchSource, clock: Clock) -> None:
        super().__init__()
        self._store = store
        self._source = source
        self._clock = clock
        self._turn = asyncio.Lock()
        self._kept: list[Version] = []

    async def __aenter__(self) -> Self:
        self._tending = asyncio.create_task(self._tend())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            self._tending.cancel()
            await asyncio.wait([self._tending])

    async def publish(self, version: Version, buffers: Sequence[NamedBuffer]) -> None:
        """Start to publish a snapshot; ranks without one do nothing. Raises what the work before ran into."""
        await self._finish()
        if self._tending.done():
            self._tending.result()
        if buffers:
            self._under_way = asyncio.create_task(self._publish(version, buffers))

    async def _publish(self, version: Version, buffers: Sequence[NamedBuffer]) -> None:
        started = self._clock.now()
        await self._ask(self._store.publish, version, buffers)
        await self._source.published(version, self._clock.now() - started)
        self._kept = [*self._kept, version][-KEPT_VERSIONS:]
        await self._free()

    async def _tend(self) -> None:
        """Free what a reader still used when it was discarded, and publish again what was lost since."""
        while True:
            await self._clock.sleep(TEND_S)
            if self._kept:
                await self._free()

    async def _free(self) -> None:
        try:
            await self._ask(self._store.discard, self._kept)
        except DeadlinePassed:
            raise  # it is still at it
        except Exception as error:
            # No reason to stop training, whatever it is: the version is published, and this is tried again.
            _log.warning("published weights cannot be looked after, next try in %g s: %s", TEND_S, error)

    async def _ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._turn, within(STORE_DEADLINE_S, "the weight store, asked by the learner"):
            return await asyncio.to_thread(call, *args, **kwargs)
