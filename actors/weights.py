"""Following the newest weights: staged in the background, then applied by the engine in one short stall."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from olmorl.clock import Clock, within
from olmorl.errors import WeightError
from olmorl.messages import Version
from olmorl.ports import Engine, StagedWeights, Update, WeightStore

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_BACKOFF_S = 5.0
_log = logging.getLogger(__name__)


class WeightFollower:
    """The engine runs what `latest()` last named, or that is being fetched; a version that fails is never in use."""

    def __init__(
        self, store: WeightStore, engine: Engine, clock: Clock, *, owner: str, poll_s: float, deadline_s: float
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._owner = owner
        self._poll_s = poll_s
        self._deadline_s = deadline_s
        self._moved = asyncio.Condition()
        self._failures_in_a_row = 0
        self.updates = 0
        self.failures = 0
        self.stall_s_total = 0.0
        self.stall_s_max = 0.0

    async def newest(self) -> StagedWeights | None:
        """The latest version, staged, for an engine that starts; None while nothing is published."""
        while (version := await self._in_thread(self._store.latest)) is not None:
            try:
                return await self._in_thread(self._store.fetch, version)
            except WeightError as error:
                await self._back_off(version, error)
        return None

    async def next_update(self) -> Update:
        """Wait until a version that is not in use is published, and apply it.

        Any difference counts, not only a greater number: a learner that went back to a checkpoint is followed too.

        Raises:
            DeadlinePassed: the store did not answer.
        """
        while True:
            version = await self._in_thread(self._store.latest)
            if version is None or version == self._engine.version:
                await self._clock.sleep(self._poll_s)
                continue
            try:
                return await self._apply(await self._in_thread(self._store.fetch, version))
            except WeightError as error:
                await self._back_off(version, error)

    async def reach(self, version: Version) -> None:
        """Wait until the engine is not older than `version`: the same incarnation's, or a newer incarnation's.

        Raises:
            DeadlinePassed: the version never came.
        """
        if self._engine.version >= version:
            return
        wanted = f"weights {version} of the learner; the engine of {self._owner} has {self._engine.version}"
        async with within(self._deadline_s, wanted), self._moved:
            await self._moved.wait_for(lambda: self._engine.version >= version)

    async def _apply(self, staged: StagedWeights) -> Update:
        update = await self._engine.update(staged)
        self.updates += 1
        self.stall_s_total += update.stall_s
        self.stall_s_max = max(self.stall_s_max, update.stall_s)
        self._failures_in_a_row = 0
        async with self._moved:
            self._moved.notify_all()
        return update

    async def _back_off(self, version: Version, error: WeightError) -> None:
        self.failures += 1
        self._failures_in_a_row += 1
        pause_s = min(LONGEST_BACKOFF_S, self._poll_s * 2**self._failures_in_a_row)
        _log.warning("%s: weights %s not applied, next try in %.1f s: %s", self._owner, version, pause_s, error)
        await self._clock.sleep(pause_s)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with within(self._deadline_s, f"the weight store, asked by {self._owner}"):
            return await asyncio.to_thread(call, *args, **kwargs)
