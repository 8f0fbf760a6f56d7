"""The draws of a run: made, requeued, answered, journaled, trained, or ended without training.

The order of the writes protects a draw. It is in the ledger before it is in the queue, and its result leaves the queue
only after its outcome is in the ledger. So no crash loses a draw or counts it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from olmorl.clock import Clock
from olmorl.config import Config
from olmorl.errors import QueueFull, ResourceError, RunEnded
from olmorl.learner.background import in_thread
from olmorl.learner.batching.batch import Batch, BatchBuilder
from olmorl.learner.batching.scheduling import slowest_engine
from olmorl.learner.orchestrator.batcher import Batcher, Ending
from olmorl.learner.orchestrator.changes import NUM_ACTORS, plan_change, settings_at
from olmorl.learner.orchestrator.recovery import Recovered, reconcile
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.group_stats import Score, failure, score
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger import Position
from olmorl.learner.storage.ledger_state import (
    Changed,
    Decided,
    LedgerState,
    Line,
    Lost,
    Outcome,
    Recalled,
    Requeued,
    Retired,
    Trained,
    journaled,
)
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import TRAIN_LANE, ActorStatus, Group, Version
from olmorl.ports import Counts, Queue, Taken
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)
DESCRIBE_S = 10.0
"""Time for `describe`."""


class Letter(NamedTuple):
    """A dead letter: a prompt or a result that could not be used, with the row of its draw."""

    draw: int
    row: str
    reason: str
    payload: bytes


class Draws:
    """A draw is in exactly one place: the queue, the journal, or among those with an outcome.

    Owns the ledger, the journal, the training lane of the queue and the batches that no rank has. A change has several
    steps; the public coroutines run one after another, so that nothing sees half a change.
    """

    def __init__(
        self,
        config: Config,
        queue: Queue,
        recovered: Recovered,
        rollouts: RolloutLog,
        disk: DiskWriter,
        clock: Clock,
        control: RunControl,
        num_ranks: int,
    ) -> None:
        plan = recovered.plan
        self._config = config
        self._schedule = config.schedule
        self._queue = queue
        self._ledger = recovered.ledger
        self._source = recovered.source
        self._files = RunFiles(config.run_dir)
        self._journal = Journal(self._files.journal)
        self._rollouts = rollouts
        self._disk = disk
        self._control = control
        self._builder = BatchBuilder(config, num_ranks)
        self._batcher = Batcher(config, self._builder, clock, plan.step)
        self._lock = asyncio.Lock()
        self._incarnation = plan.incarnation
        self._replay_to = plan.replay_to
        self._position_at_start = self._ledger.position
        self._position_after: dict[int, Position] = {}
        self._leftovers = set(recovered.reconciled.leftovers)
        self._lost = set(recovered.reconciled.lost)
        self._batches: dict[int, Batch] = {}
        self._ended = False
        self.epoch = recovered.epoch
        """The queue's at the last comparison. Results that were taken in an earlier epoch may be lost."""
        self.done = plan.step
        """Steps that are recorded."""
        self.saved = None if plan.checkpoint is None else plan.step
        """The step of the newest complete checkpoint."""
        self.published: Version | None = None
        """The newest version that actors can fetch."""
        self.over = False
        """The data ended, and no further batch can be filled."""

    @property
    def state(self) -> LedgerState:
        """The state of all draws, from the ledger."""
        return self._ledger.state

    @property
    def exhausted(self) -> bool:
        """Whether the prompt stream has ended."""
        return self._source.exhausted

    @property
    def live(self) -> int:
        """Draws without an outcome, from the ledger. `counts` compares it with the places of the draws."""
        return len(self.state.open) + self.state.journaled

    @property
    def num_ready(self) -> int:
        """Groups that wait for a step."""
        return len(self._batcher.ready)

    @property
    def failures(self) -> tuple[int, str]:
        """The number of draws that failed since the last scored group, and these failures in words."""
        return self._batcher.streaks.failed, self._batcher.streaks.failures

    def has_built(self, step: int) -> bool:
        """Whether the batch of `step` was built, also if ranks have it already."""
        return self._batcher.last_built >= step

    # --- results become batches -------------------------------------------------------------------

    async def accept(self, limit: int, wait_s: float) -> None:
        """Take at most `limit` results, and keep the groups that may train; the other draws end.

        Args:
            wait_s: longest wait for the first result.

        Raises:
            NothingToLearn: too many groups in a row without a gradient.
            RunEnded: too many draws in a row failed, or the data ended before the first step.
        """
        epoch = self.epoch
        taken = await self._queue.take(limit, TRAIN_LANE, wait_s)
        async with self._lock:
            if self.epoch != epoch:
                return  # the queue was restarted in between, and delivers all results again
            await self._settle(taken)

    async def advance(self) -> None:
        """Do all that is possible now: draw prompts, build the batches of the next two steps, end the stream."""
        async with self._lock:
            if self._ended:
                return  # the last version may be published after the run
            if self._control.paused:
                self._batcher.paused()
            if self.published is not None and self._control.drawing:
                await self._draw_allowed(self.published)
            await self._assemble()
            if not self._control.stopping:
                await self._end_of_stream()

    def settings(self, step: int) -> Config:
        """The configuration of a step, with what people have changed since the run began."""
        changes = self.state.changes
        return settings_at(self._config, changes, step) if changes else self._config

    async def change(self, key: str, value: object, who: str) -> Changed | None:
        """Change a key from the next step on that no journal has; returns None if it has this value already.

        Raises:
            ConfigError: this key cannot be changed now, or not to this value.
        """
        async with self._lock:
            change = plan_change(self._config, self.state.changes, key, value, who, self._next_to_build)
            if change is not None:
                await self._book(change)
            return change

    async def resized(self, before: int, count: int, who: str) -> None:
        """Record that the run has another number of actors."""
        async with self._lock:
            step = self._next_to_build
            await self._book(Changed(key=NUM_ACTORS, recipe=None, old=before, new=count, who=who, step=step))

    @property
    def _next_to_build(self) -> int:
        """The first step whose batch is neither built nor in the journal."""
        return max(self._batcher.last_built, self._replay_to) + 1

    def batch(self, step: int) -> Batch | None:
        """The batch of `step` if it is built and no rank has it."""
        return self._batches.get(step)

    def take_batch(self, step: int) -> Batch:
        """Remove and return the batch of `step`, for the ranks."""
        return self._batches.pop(step)

    async def observe(self, statuses: Mapping[str, ActorStatus]) -> None:
        """Note how busy the engines are, and which draws no actor has begun. `statuses` were read before this call."""
        async with self._lock:
            self._batcher.look_at_engines(statuses.values())
            version = slowest_engine(statuses.values(), self._incarnation)
            if self._batcher.waits_for_unfinished and version is not None:
                queued = [draw for draw in await self._queue.queued(TRAIN_LANE) if draw in self.state.open]
                self._batcher.not_begun(queued, version, self.state.open)

    def publish(self, version: Version) -> None:
        """Draw for `version` from now on: actors can fetch it."""
        self.published = version

    # --- a step ends ------------------------------------------------------------------------------

    async def lose(self, tokens: dict[str, int]) -> bool:
        """Record the tokens of lost attempts, by process of an actor; returns False if the run is over."""
        async with self._lock:
            if tokens and not self._ended:
                await self._book(Lost(tokens=tokens))
            return not self._ended

    async def train(self, step: int, tokens: int) -> tuple[Counts, int]:
        """Record that the learner took the step; returns the `counts` after it."""
        async with self._lock:
            self.state.forget(step - 1)
            await self._book(Trained(step=step, tokens=tokens))
            self._position_after[step] = self._ledger.position
            self.done = step
            self._batcher.step_ended(step, self.state.open)
            return await self._counts()

    async def complete(self, step: int) -> None:
        """Add the orchestrator's part and the marker to a checkpoint, then remove the journal that it covers.

        The part names the position of the ledger after `step`, and its state there: the run may be further by now.
        """
        async with self._lock:
            await self._counts()
            position = self._position_after.get(step, self._position_at_start)
            part = checkpoint_dir.Part(
                step=step,
                incarnation=self._incarnation,
                ledger_incarnation=position.incarnation,
                ledger_bytes=position.num_bytes,
            )
            await self._disk.write(partial(in_thread, self._complete, part))
            self.saved = step
            self._position_after = {later: place for later, place in self._position_after.items() if later > step}

    def _complete(self, part: checkpoint_dir.Part) -> None:
        # A newer start does not know this checkpoint, and needs the journal.
        self._ledger.check_newest()
        # The state is folded from what is on disk, from the checkpoint before.
        state = checkpoint_dir.state_at(self._files, part.position, self.saved)
        state.forget(part.step)
        checkpoint_dir.complete(self._files.checkpoints, part, state)
        self._journal.forget(part.step)

    def check_newest(self) -> None:
        """Raises Superseded when a newer start has taken over the run."""
        self._ledger.check_newest()

    async def write_rollouts(self) -> None:
        """Wait until all records of ended draws are on disk."""
        await self._rollouts.flush()

    async def close(self) -> None:
        """The run is over: when the change under way has ended, write pending records and close the files."""
        async with self._lock:
            self._ended = True
            try:
                await self._rollouts.close()
            finally:
                self._ledger.close()

    # --- all draws at once ------------------------------------------------------------------------

    async def counts(self) -> tuple[Counts, int]:
        """The queue's counts, and the number of draws in flight, counted where they are.

        A queue that was restarted since the last count is compared with the ledger first.

        Raises:
            RunEnded: drawn = trained + zero_gradient + stale + failed + in_flight does not hold.
        """
        async with self._lock:
            return await self._counts()

    async def describe(self) -> str:
        """The places of all draws in words, or a note that the orchestrator itself is blocked."""
        try:
            async with asyncio.timeout(DESCRIBE_S), self._lock:
                counts, _ = await self._counts()
                actors = ", ".join(await self._queue.statuses()) or "none"
        except TimeoutError:
            return "and the orchestrator itself waits for its disk or for the queue"
        _, failures = self.failures
        return (
            f"{self.num_ready} groups are ready; of the prompts {counts.queued} are queued, "
            f"{counts.leased} with actors, {counts.results} back; actors with heartbeats: {actors}"
            + (f"; {failures}" if failures else "")
        )

    async def letters(self) -> list[Letter]:
        """All dead letters, oldest first."""
        draws = self.state.open | self.state.failed | self.state.to_replay
        letters = await self._queue.dead_letters(TRAIN_LANE)
        return [
            Letter(letter.draw_id, draws[letter.draw_id].row, letter.reason, letter.payload)
            for letter in letters
            if letter.draw_id in draws
        ]

    async def replay_letters(self) -> list[int]:
        """Draw the rows of all dead letters again, as the lag allows; returns their old draws.

        A letter leaves the queue when its row is drawn again. The old draw stays failed; the new one has its own id.
        """
        async with self._lock:
            letters = {letter.draw_id for letter in await self._queue.dead_letters(TRAIN_LANE)}
            waiting = self.state.open.keys() | self.state.failed.keys() | self.state.to_replay.keys()
            await self._queue.drop_dead_letters(letters - waiting, TRAIN_LANE)
            if new := sorted(letters & self.state.failed.keys()):
                await self._book(Recalled(draws=new))
            return new

    async def _counts(self) -> tuple[Counts, int]:
        while True:
            epoch = await self._queue.epoch()
            if epoch != self.epoch:
                await self._begin_again(epoch)
            counts = await self._queue.counts(TRAIN_LANE)
            in_flight = counts.live - len(self._leftovers) + len(self._lost) + self.state.journaled
            drawn, ended = self.state.num_drawn, self.state.outcomes
            if drawn == ended.total() + in_flight:
                return counts, in_flight
            # The queue may have been restarted after its epoch was read.
            if await self._queue.epoch() == epoch:
                raise RunEnded(
                    f"the draws do not add up: {drawn} drawn, {dict(ended)}, and {in_flight} in flight: {counts}, "
                    f"{self.state.journaled} journaled, {len(self._lost)} lost, {len(self._leftovers)} left over"
                )

    async def _begin_again(self, epoch: str) -> None:
        """Compare with the queue, which was restarted and may have lost writes. It is in `epoch` now."""
        # The queue delivers its results once more. A ready group that it lost is generated again.
        answered = self._batcher.begin_again(self.state.open)
        await self._queue.claim(self._incarnation)
        differences = await reconcile(self._queue, self.state, answered)
        before, self._lost = self._lost, set(differences.lost)
        self._leftovers = set(differences.leftovers)
        await self._control.repeat()
        self.epoch = epoch
        log.warning(
            "the queue was restarted: %d draws were lost and are queued once more, %d had come back and are withdrawn, "
            "%d results had come back and are dropped",
            *(len(differences.lost - before), len(differences.withdrawn), len(differences.leftovers)),
        )

    # --- a draw begins ----------------------------------------------------------------------------

    async def _draw_allowed(self, version: Version) -> None:
        """Queue as many prompts for `version`, the newest published one, as the lag allows.

        A restarted queue may be full of ended draws that came back. It is compared first then, and the next call queues
        what found no room.
        """
        ahead = self.settings(self._next_to_build).schedule.batches_ahead
        allowed = self._batcher.allowed(self.live, len(self.state.open), version, self.done, ahead)
        first = self.state.num_drawn
        try:
            await self._draw(allowed, version)
        except QueueFull:
            if await self._queue.epoch() == self.epoch:
                raise
            await self._counts()
        else:
            self._batcher.drawn(range(first, self.state.num_drawn))

    async def _draw(self, number: int, version: Version) -> None:
        """Queue the draws that were lost, then up to `number` new ones."""
        if self._leftovers:
            return  # they take room in the queue until they arrive and are trimmed
        if self._lost:
            await self._requeue(version)
        first = self.state.num_drawn
        again = list(self.state.to_replay)[:number]
        drawn = [
            self._source.replay(of, self.state.to_replay[of].position, first + i, version) for i, of in enumerate(again)
        ]
        drawn += self._source.take(number - len(again), first + len(again), version)
        if drawn:
            await self._book(*(event for event, _ in drawn))
            await self._queue.push([prompt for _, prompt in drawn])
        if again:
            await self._queue.drop_dead_letters(again, TRAIN_LANE)

    async def _requeue(self, version: Version) -> None:
        events, prompts = [], []
        for draw_id in sorted(self._lost):
            draw = self.state.open[draw_id]
            attempt = draw.attempt + 1
            events.append(Requeued(draw=draw_id, attempt=attempt, version=version.number))
            prompts.append(self._source.again(draw_id, draw.position, attempt, version))
        await self._book(*events)
        await self._queue.push(prompts)
        self._lost.clear()

    async def _retire(self, rows: Iterable[str]) -> None:
        """Never draw these rows again."""
        if new := [row for row in dict.fromkeys(rows) if not self._source.is_retired(row)]:
            await self._book(*(Retired(row=row) for row in new))
            for row in new:
                self._source.retire(row)

    # --- a draw ends, or joins a batch --------------------------------------------------------------

    async def _settle(self, taken: Sequence[Taken]) -> None:
        self._batcher.check_data(self.state)
        undecided = await self._trim_decided(taken)
        await self._retire(self._batcher.solved_rows(undecided))
        await self._decide(self._batcher.judge(undecided, self.state.starts))
        self._batcher.streaks.check()

    async def _trim_decided(self, taken: Sequence[Taken]) -> list[Taken]:
        """Trim the results of draws that are no longer open; returns the other results."""
        decided = [item for item in taken if item.draw_id not in self.state.open]
        if decided:
            await self._queue.trim(decided)
            self._leftovers.difference_update(item.draw_id for item in decided)
        return [item for item in taken if item.draw_id in self.state.open]

    async def _decide(self, endings: Sequence[Ending]) -> None:
        """Record outcomes in the ledger, then trim the results."""
        if not endings:
            return
        await self._book(*map(_decided, endings))
        for taken, outcome, cause in endings:
            await self._rollouts.put(taken.result, outcome, cause)
        await self._queue.trim([ending.taken for ending in endings])

    async def _assemble(self) -> None:
        """Build the batches of the next two steps, as far as there are groups for them."""
        last = min(self.done + 2, self._schedule.steps)
        while (step := self._batcher.last_built + 1) <= last and (groups := await self._groups(step)) is not None:
            parts = step, groups, self.state.starts, self.settings(step)
            self._batches[step] = await asyncio.to_thread(self._builder.build, *parts)
            self._batcher.built(step, self.done)
        self._batcher.assembled(self.done)

    async def _groups(self, step: int) -> list[Group] | None:
        """The groups of `step`, which are in the journal; None when there are too few."""
        if step <= self._replay_to:
            return await self._replay(step)
        await self._decide(self._batcher.drop_over_age(step - 1, self.state.starts))
        chosen = self._batcher.choose(step, self.state)
        if chosen is None:
            return None
        await self._write_batch(step, chosen)
        return [group for _, group in chosen]

    async def _write_batch(self, step: int, batch: Sequence[tuple[Taken, Group]]) -> None:
        """Make the groups of a step durable, then trim their results."""
        groups = [group for _, group in batch]
        event = journaled(step, groups)

        def write() -> None:
            self._ledger.check(event)  # before each try: a full disk may have taken long
            self._journal.write(step, self._incarnation, groups)

        await self._disk.write(partial(in_thread, write))
        await self._book(event)
        await self._rollouts.end_step(step, groups)
        await self._queue.trim([taken for taken, _ in batch])

    async def _replay(self, step: int) -> list[Group]:
        """The groups of a journaled step, in their order.

        Raises:
            ResourceError: the file is damaged, or its groups differ from the ledger's.
        """
        groups = await in_thread(self._journal.read, step)
        if journaled(step, groups).draws != self.state.batches[step].draws:
            raise ResourceError(
                f"{self._journal.path_of(step)}: its groups differ from the ledger's; remove it and the steps after it "
                "to generate their prompts again"
            )
        recorded = await in_thread(self._rollouts.has, step)
        await self._rollouts.end_step(step, [] if recorded else groups)
        return groups

    async def _end_of_stream(self) -> None:
        """At the end of a finite stream, end the draws of groups that can no longer fill a batch as stale."""
        finished = self.num_ready == len(self.state.open)
        can_fill = self._batcher.last_built < self._replay_to or self.num_ready >= self._schedule.prompts_per_step
        if self.exhausted and finished and not can_fill and not self.state.to_replay:
            await self._decide(self._batcher.end_of_data())
            self.over = self._batcher.last_built > 0

    async def _book(self, *events: Line) -> None:
        async def append() -> None:
            self._ledger.append(*events)

        await self._disk.write(append)


def _decided(ending: Ending) -> Decided:
    result = ending.taken.result
    scored = score(result) if isinstance(result, Group) and ending.outcome is not Outcome.FAILED else None
    failed = failure(result, ending.cause) if ending.outcome is Outcome.FAILED else Score()
    return Decided(
        draw=ending.taken.draw_id,
        attempt=result.prompt.attempt,
        outcome=ending.outcome,
        cause=ending.cause,
        score=scored or failed,
        wasted=0 if scored else result.num_tokens,
    )
