"""Publishes versions in the background: only the snapshot costs the learner time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from olmorl.clock import Clock, within
from olmorl.errors import DeadlinePassed
from olmorl.learner.background import Background
from olmorl.messages import Probe, Version
from olmorl.ports import BatchSource, NamedBuffer, WeightStore

P = ParamSpec("P")
T = TypeVar("T")
_POLL_S = 0.02
KEPT_VERSIONS = 2
"""The newest version, and the previous one, because a node may still fetch it."""
TEND_S = 5.0
"""Interval between two cleanups of the published versions."""
STORE_DEADLINE_S = 1800.0
"""For one call of the store, and for the shards of the other ranks after that of rank 0."""
_log = logging.getLogger(__name__)


class Publisher(Background):
    """Publishes this rank's shard of one version at a time, in order. Rank 0 waits for the shards of all ranks."""

    def __init__(self, store: WeightStore, source: BatchSource, clock: Clock, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self._store = store
        self._source = source
        self._clock = clock
        self._rank, self._ranks = rank, ranks
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

    async def publish(self, version: Version, buffers: Sequence[NamedBuffer], probe: Probe | None = None) -> None:
        """Start to publish a snapshot. Raises the error of the previous publish."""
        await self.finish()
        if self._tending.done():
            self._tending.result()
        self.begin(self._publish(version, buffers, probe))

    async def _publish(self, version: Version, buffers: Sequence[NamedBuffer], probe: Probe | None) -> None:
        started = self._clock.now()
        await self._call(self._store.publish, version, buffers, probe, self._rank, self._ranks)
        if self._rank == 0:
            await self._complete(version)
            await self._source.published(version, self._clock.now() - started)
        self._kept = [*self._kept, version][-KEPT_VERSIONS:]
        await self._free()

    async def _complete(self, version: Version) -> None:
        """Wait until the shards of all ranks are there and readers see the version."""
        give_up = self._clock.now() + STORE_DEADLINE_S
        while missing := await self._call(self._store.complete, version):
            if self._clock.now() > give_up:
                raise DeadlinePassed(
                    f"waited {STORE_DEADLINE_S:g} s for the shards of version {version}: none from learner ranks "
                    f"{missing}"
                )
            await self._clock.sleep(_POLL_S)

    async def _tend(self) -> None:
        """Free old versions that readers no longer use, and publish lost versions again."""
        while True:
            await self._clock.sleep(TEND_S)
            if self._kept:
                await self._free()

    async def _free(self) -> None:
        try:
            await self._call(self._store.discard, self._kept)
        except DeadlinePassed:
            raise  # the call still runs
        except Exception as error:
            # No reason to stop training: the version is published, and the next cleanup tries again.
            _log.warning("published weights cannot be cleaned up, next try in %g s: %s", TEND_S, error)

    async def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._turn, within(STORE_DEADLINE_S, "the weight store to answer the learner"):
            return await asyncio.to_thread(call, *args, **kwargs)
