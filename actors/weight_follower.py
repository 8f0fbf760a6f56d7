"""Follows the newest weights: stages them in the background, then the engine applies them in one short stall."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from olmorl.actors.staleness import LagWatch
from olmorl.actors.weight_proof import TOLERANCE, WeightProver
from olmorl.clock import Clock, within
from olmorl.errors import WeightError, WeightsDamaged
from olmorl.messages import Version
from olmorl.ports import Engine, StagedWeights, Update, WeightSource

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_BACKOFF_S = 5.0
DAMAGED_AFTER = 3
"""Tries in a row at one version whose bytes differed from the published ones."""
_log = logging.getLogger(__name__)


class _FailedTries:
    """Counts the tries to fetch and apply a version that failed."""

    def __init__(self) -> None:
        self.total = 0
        self.in_a_row = 0
        self.last = ""
        self._wanted: Version | None = None
        self._damages_in_a_row = 0

    @property
    def damaged(self) -> Version | None:
        """The wanted version, when its bytes were damaged in each of the last `DAMAGED_AFTER` tries."""
        return self._wanted if self._damages_in_a_row >= DAMAGED_AFTER else None

    def wants(self, version: Version | None) -> None:
        if version != self._wanted:
            self._wanted, self._damages_in_a_row = version, 0

    def note(self, error: WeightError) -> None:
        self.total += 1
        self.in_a_row += 1
        self.last = str(error)
        self._damages_in_a_row = self._damages_in_a_row + 1 if isinstance(error, WeightsDamaged) else 0

    def applied(self) -> None:
        self.in_a_row, self.last, self._damages_in_a_row = 0, "", 0


class WeightFollower:
    """The engine has the latest version, or it is being fetched. A version that fails is never in use."""

    def __init__(
        self,
        store: WeightSource,
        engine: Engine,
        clock: Clock,
        *,
        owner: str,
        poll_s: float,
        deadline_s: float,
        max_lag: int,
        drains: bool = False,
        tolerance: float = TOLERANCE["bfloat16"],
    ) -> None:
        """With `drains` the engine ends its sequences before it takes a version. `tolerance` as in `WeightProof`."""
        self._store = store
        self._engine = engine
        self._clock = clock
        self._owner = owner
        self._poll_s = poll_s
        self._deadline_s = deadline_s
        self._drains = drains
        self._lag = LagWatch(owner, max_lag, deadline_s)
        self.prover = WeightProver(engine, clock, owner, tolerance, deadline_s)
        self._failed_tries = _FailedTries()
        self._moved = asyncio.Condition()
        self.draining = False
        """Whether the engine ends its sequences before an update. `StallWatch` limits the time."""
        self.updates = 0
        self.stall_s_total = 0.0
        self.stall_s_max = 0.0

    async def newest(self) -> StagedWeights | None:
        """The latest version, staged, for an engine that starts; None while nothing is published."""
        while True:
            try:
                version = await self._latest()
                return None if version is None else await self._in_thread(self._store.fetch, version)
            except WeightError as error:
                await self._back_off(error)

    async def next_update(self) -> Update:
        """Wait until a version that is not in use is published, and apply it.

        Any difference counts, not only a greater number: a learner that went back to a checkpoint is followed too.

        Raises:
            DeadlinePassed: the store did not answer.
        """
        while True:
            try:
                version = await self._latest()
                self._lag.note_versions(self._clock.now(), version, self._engine.version)
                if version is not None and version != self._engine.version:
                    staged = await self._in_thread(self._store.fetch, version)
                    return await (self._apply_when_drained(staged) if self._drains else self._apply(staged))
                await self._clock.sleep(self._poll_s)
            except WeightError as error:
                await self._back_off(error)

    @property
    def trails(self) -> bool:
        """Whether other actors should get its prompts.

        The engine is more than `max_lag` behind for longer than an update, or drains, or the published version is
        damaged.
        """
        return self.draining or self.damaged is not None or self._lag.trails(self._clock.now())

    @property
    def damaged(self) -> Version | None:
        """The version whose published bytes were damaged at each fetch."""
        return self._failed_tries.damaged

    @property
    def trouble(self) -> str:
        """Why the last try failed; empty after a success."""
        return self._failed_tries.last

    @property
    def failures(self) -> int:
        """Failed tries to fetch or apply a version, since the start of the actor."""
        return self._failed_tries.total

    async def reach(self, version: Version) -> bool:
        """Wait until the engine is not older than `version`: the same incarnation's, or a newer incarnation's.

        False when the engine trails instead.

        Raises:
            DeadlinePassed: the version never came.
        """
        if self._engine.version >= version:
            return True
        self._lag.note_prompt(self._clock.now(), version, self._engine.version)
        wanted = (
            f"weights {version} of the learner; the engine of {self._owner} has {self._engine.version} "
            "(actors.stall_deadline_s)"
        )
        async with within(self._deadline_s, wanted), self._moved:
            await self._moved.wait_for(lambda: self._engine.version >= version or self.trails)
        return self._engine.version >= version

    async def check(self) -> None:
        """Check the lag, and wake the waits for a version while the engine trails.

        Raises:
            DeadlinePassed: the engine has been behind for too long. A drain may take as long as an answer.
        """
        if not self.draining:
            self._lag.check(self._clock.now(), self._failed_tries.last)
        if self.trails:
            await self._notify()

    async def _apply_when_drained(self, staged: StagedWeights) -> Update:
        """Wait for the running sequences, then apply `staged` or the version that was published meanwhile."""
        self.draining = True
        try:
            await self._notify()
            async with self._engine.drained():
                newest = await self._latest()
                if newest is not None and newest != staged.manifest.version:
                    staged = await self._in_thread(self._store.fetch, newest)
                return await self._apply(staged)
        finally:
            self.draining = False
            self._lag.start_again(self._clock.now())

    async def _apply(self, staged: StagedWeights) -> Update:
        with self.prover.taking(staged.manifest):
            update = await self._engine.update(staged)
        self.updates += 1
        self.stall_s_total += update.stall_s
        self.stall_s_max = max(self.stall_s_max, update.stall_s)
        self._failed_tries.applied()
        await self._notify()
        return update

    async def _notify(self) -> None:
        """Wake the waits for a version."""
        async with self._moved:
            self._moved.notify_all()

    async def _back_off(self, error: WeightError) -> None:
        self._failed_tries.note(error)
        pause_s = min(LONGEST_BACKOFF_S, self._poll_s * 2 ** min(self._failed_tries.in_a_row, 30))
        _log.warning("%s: weights not applied, next try in %.1f s: %s", self._owner, pause_s, error)
        await self._clock.sleep(pause_s)

    async def _latest(self) -> Version | None:
        version = await self._in_thread(self._store.latest)
        self._failed_tries.wants(version)
        return version

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with within(self._deadline_s, f"the weight store, asked by {self._owner} (actors.stall_deadline_s)"):
            return await asyncio.to_thread(call, *args, **kwargs)
