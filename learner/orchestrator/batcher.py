"""Turns results into batches: decides which groups may train, keeps them until a step takes them, builds the batch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence

from olmorl.clock import Clock
from olmorl.config import KV_HEADROOM, Config
from olmorl.errors import RunEnded
from olmorl.learner.batching import scheduling
from olmorl.learner.batching.batch import Batch, BatchBuilder
from olmorl.learner.batching.draw_ahead import DrawAhead
from olmorl.learner.batching.oldest_versions import OldestVersions, slowest_engine
from olmorl.learner.batching.samples import defect
from olmorl.learner.batching.scheduling import ReadyGroups
from olmorl.learner.batching.version_wait import VersionWait
from olmorl.learner.orchestrator.draw_lifecycle import DrawLifecycle, Ending, Reconciled
from olmorl.learner.orchestrator.result_streaks import ResultStreaks
from olmorl.learner.storage.group_stats import solve_rate
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.messages import ActorStatus, Failure, Group, Version
from olmorl.ports import Taken


class Batcher:
    """Each batch is built once, at most one step ahead of the training, and for the version that it trains.

    Call its methods inside `DrawLifecycle.exclusive`.
    """

    def __init__(
        self, config: Config, lifecycle: DrawLifecycle, builder: BatchBuilder, clock: Clock, done: int, replay_to: int
    ) -> None:
        """`done` steps are trained. The steps after it, up to `replay_to`, come from the journal."""
        self._config = config
        self._schedule = config.schedule
        self._lifecycle = lifecycle
        self._builder = builder
        self._replay_to = replay_to
        self._ready = ReadyGroups()
        self._ahead = DrawAhead(clock, config.schedule.prompts_per_step)
        self._oldest = OldestVersions()
        self._version_wait = VersionWait(clock, config.schedule.max_lag + 1)
        self.streaks = ResultStreaks(config.schedule.max_useless_groups)
        self._last_built = done
        self._never_filled = False
        self.waits_for_unfinished = False
        """There are enough groups for a step, and unfinished draws would grow too old if it took them."""
        self.batches: dict[int, Batch] = {}
        """Batches that no rank has been handed, by step."""
        self.over = False
        """The data ended, and no further batch can be filled."""

    @property
    def num_ready(self) -> int:
        """Groups that wait for a step."""
        return len(self._ready)

    def look_at_engines(self, statuses: Iterable[ActorStatus]) -> None:
        """Note how busy the engines are: one with a sequence that waits is busy, however few it runs.

        So is one whose KV cache is full, as far as it may be.
        """
        actors = self._config.actors
        shares = [
            1.0
            if status.waiting
            else min(max(status.running / actors.max_running, status.kv_used / (1 - KV_HEADROOM)), 1.0)
            for status in statuses
        ]
        if shares:
            self._ahead.engines_busy(sum(shares) / len(shares))

    def paused(self) -> None:
        """The run is paused: no time that passes now says how fast it is."""
        self._ahead.paused()
        self._version_wait.paused()

    async def look_at_queue(self, statuses: Mapping[str, ActorStatus], incarnation: int) -> None:
        """Find the draws that no actor has begun: they do not grow older. `statuses` were read before this call."""
        version = slowest_engine(statuses.values(), incarnation)
        if version is not None:
            self._oldest.not_begun(await self._lifecycle.queued(), version, self._lifecycle.state.open)

    async def settle(self, taken: Sequence[Taken]) -> None:
        """Filter results, and add the groups that may train to the ready ones.

        Raises:
            NothingToLearn: too many groups in a row without a gradient.
            RunEnded: too many draws in a row failed, or the data ended before the first step.
        """
        if self._never_filled:
            raise RunEnded(self._why_never_filled())
        endings = []
        undecided = await self._lifecycle.trim_decided(taken)
        await self._lifecycle.retire(self._solved_rows(undecided))
        for item in undecided:
            ending = self._judge(item)
            self._ahead.finished(item.draw_id, useful=ending is None)
            if ending is not None:
                endings.append(ending)
        await self._lifecycle.decide(endings)
        self.streaks.check()

    def _judge(self, item: Taken) -> Ending | None:
        """Add a group to the ready ones, or return how its draw ends."""
        result = item.result
        if isinstance(result, Failure):
            if result.cause == "stale":
                return Ending(item, Outcome.STALE, result.cause)
            return self._failed(item, result.cause, result.detail)
        if reason := defect(result):
            return self._failed(item, f"malformed: {reason}")
        may_train = not self._schedule.filter_zero_gradient or self._builder.has_gradient(result)
        self.streaks.scored(has_gradient=may_train)
        if not may_train:
            return Ending(item, Outcome.ZERO_GRADIENT)
        starts = self._lifecycle.state.starts
        self._ready.add(item, result, scheduling.deadline(result, self._schedule.max_lag, starts))
        return None

    def _failed(self, item: Taken, cause: str, detail: str = "") -> Ending:
        self.streaks.failure(item.result.prompt.row, cause, detail)
        return Ending(item, Outcome.FAILED, cause)

    def _solved_rows(self, taken: Sequence[Taken]) -> list[str]:
        """Rows that are solved often enough to be drawn no more."""
        limit = self._config.data.no_resample_above
        if limit is None:
            return []
        groups = [item.result for item in taken if isinstance(item.result, Group) and not defect(item.result)]
        return [group.prompt.row for group in groups if solve_rate(group) >= limit]

    async def reconcile(self) -> Reconciled:
        """Compare with a queue that may have lost writes. A ready group that it lost is generated again."""
        # The queue delivers its results once more, under the names that they have now.
        answered = {taken.draw_id for taken, _ in self._ready.clear()}
        self._oldest.forget(self._lifecycle.state.open)
        return await self._lifecycle.reconcile(answered)

    async def draw(self, version: Version, done: int) -> None:
        """Queue as many prompts for `version`, the newest published one, as the lag allows."""
        allowed = scheduling.draws_allowed(
            live=self._lifecycle.live,
            published=version.number,
            done=done,
            to_finish=self._to_finish(done),
            batch=self._schedule.prompts_per_step,
            ahead=self._schedule.batches_ahead,
        )
        if self._schedule.draw_ahead == "adaptive":
            allowed = min(allowed, self._needed(done))
        if self._version_wait.pays and version.number < self._to_come:
            allowed = 0
        first = self._lifecycle.state.num_drawn
        await self._lifecycle.draw(allowed, version)
        self._ahead.drawn(range(first, self._lifecycle.state.num_drawn))

    @property
    def _to_come(self) -> int:
        """The newest version that is published once the batches so far are trained."""
        every = self._config.weights.publish_every
        return self._last_built // every * every

    def _to_finish(self, done: int) -> int:
        """Live draws that the rest of the run needs, with spares: no step waits for a second round of draws."""
        built = max(self._last_built - done, 0) * self._schedule.prompts_per_step
        finished = built + len(self._ready)
        left = (self._schedule.steps - done) * self._schedule.prompts_per_step - finished
        return finished + self._ahead.draws_to_finish(left)

    def _needed(self, done: int) -> int:
        """Draws to make now, so that no batch is late."""
        ready = len(self._ready)
        built = max(self._last_built - done - 1, 0) * self._schedule.prompts_per_step
        needed = self._ahead.needed(ready + built)
        unfinished = len(self._lifecycle.state.open) - ready
        return sys.maxsize if needed is None else max(needed - unfinished, 0)

    def step_ended(self, step: int) -> None:
        """The learner has trained the batch of `step`."""
        self._ahead.step_ended()
        self._version_wait.step_ended()
        self._ahead.forget_all_but(self._lifecycle.state.open)
        if self._last_built > step:
            self._step_began()

    def _step_began(self) -> None:
        self._ahead.step_began()
        self._version_wait.step_began()

    def has_built(self, step: int) -> bool:
        """Whether the batch of `step` was built, also if ranks have it already."""
        return self._last_built >= step

    async def assemble(self, done: int) -> None:
        """Build the batches of the next two steps, as far as there are groups for them."""
        while self._last_built < min(done + 2, self._schedule.steps) and await self._assemble():
            if self._last_built == done + 1:
                self._step_began()
        if self._last_built == done and self.waits_for_unfinished:
            self._version_wait.held_up()

    async def _assemble(self) -> bool:
        """Build the next batch; False when there are too few groups."""
        step = self._last_built + 1
        if step <= self._replay_to:
            groups = await self._lifecycle.replay(step)
        else:
            await self._drop_over_age(version=step - 1)
            if len(self._ready) < self._schedule.prompts_per_step:
                self.waits_for_unfinished = False
                return False
            # After the last step nothing can grow too old.
            unfinished = self._unfinished() if step < self._schedule.steps else []
            chosen = self._ready.take(unfinished, step - 1, self._schedule.prompts_per_step)
            self.waits_for_unfinished = chosen is None
            if chosen is None:
                return False
            await self._lifecycle.journal(step, chosen)
            groups = [group for _, group in chosen]
        batch = await asyncio.to_thread(self._builder.build, step, groups, self._lifecycle.state.starts)
        self.batches[step] = batch
        self._last_built = step
        return True

    async def _drop_over_age(self, version: int) -> None:
        starts = self._lifecycle.state.starts
        masks = self._schedule.over_age == "mask"
        endings = []
        for taken, group in self._ready.past(version):
            if not masks or not self._builder.teaches(group, version, starts):
                endings.append(Ending(taken, Outcome.STALE, "over_age"))
                self._ready.remove(taken.draw_id)
        await self._lifecycle.decide(endings)

    def _unfinished(self) -> list[int]:
        """The last versions that unfinished draws can train. A choice of groups leaves room for them."""
        if self._schedule.over_age != "wait":
            return []
        still_open = self._lifecycle.state.open.items()
        return [
            self._oldest.of(draw_id, draw.version) + self._schedule.max_lag
            for draw_id, draw in still_open
            if draw_id not in self._ready
        ]

    async def end_of_stream(self) -> None:
        """At the end of a finite stream, end the draws of groups that can no longer fill a batch as stale."""
        state = self._lifecycle.state
        finished = len(self._ready) == len(state.open)
        can_fill = self._last_built < self._replay_to or len(self._ready) >= self._schedule.prompts_per_step
        if self._lifecycle.exhausted and finished and not can_fill and not state.to_replay:
            left_over = self._ready.clear()
            await self._lifecycle.decide([Ending(taken, Outcome.STALE, "end_of_data") for taken, _ in left_over])
            self.over = self._last_built > 0
            self._never_filled = not self.over

    def _why_never_filled(self) -> str:
        outcomes = self._lifecycle.state.outcomes
        counts = {
            "zero-gradient": outcomes[Outcome.ZERO_GRADIENT],
            "failed": outcomes[Outcome.FAILED],
            "left over": outcomes[Outcome.STALE],
        }
        became = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        return (
            f"the data ended before the first step, so nothing was trained: of {sum(counts.values())} prompts "
            f"drawn {became or 'none had a result'}, and a step takes {self._schedule.prompts_per_step} groups with a "
            "gradient: give more rows, raise data.epochs or leave it out, or lower schedule.prompts_per_step"
            + (f"; {self.streaks.failures}" if self.streaks.failures else "")
        )
