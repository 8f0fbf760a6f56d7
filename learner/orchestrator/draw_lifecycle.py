"""Every change in the life of a draw: drawn, requeued, journaled, trained, or ended without training.

The order of the writes protects a draw. It is in the ledger before it is in the queue, and its result leaves the queue
only after its outcome is in the ledger. So no crash loses a draw or counts it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from olmorl.errors import ResourceError, RunEnded
from olmorl.learner.background import in_thread
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.disk_full import DiskWriter
from olmorl.learner.storage.group_stats import Score, failure, score
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger import Ledger, Position
from olmorl.learner.storage.ledger_state import (
    Decided,
    LedgerState,
    Line,
    Outcome,
    Recalled,
    Requeued,
    Retired,
    Trained,
    journaled,
)
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import TRAIN_LANE, Group, Version
from olmorl.ports import Counts, PromptQueue, Queue, QueuePlace, Taken
from olmorl.run_dir import RunFiles


class Ending(NamedTuple):
    """How a draw ends without being trained."""

    taken: Taken
    outcome: Outcome
    cause: str = ""


class Reconciled(NamedTuple):
    """Where the queue and the ledger disagree."""

    leftovers: set[int]
    """Results of draws that have ended or are in the journal. They are trimmed when they arrive."""
    lost: set[int]
    """Open draws that the queue does not have. They are queued once more."""
    withdrawn: set[int]
    """Ended or journaled draws that a fail-over put back. They are removed from the queue."""


class DrawLifecycle:
    """A draw is in exactly one place: the queue, the journal, or among those with an outcome.

    Each change has several steps. Call every method inside `exclusive`, so that nothing sees half a change.
    """

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        journal: Journal,
        rollouts: RolloutLog,
        draws: Draws,
        disk: DiskWriter,
        incarnation: int,
        found: Reconciled,
        files: RunFiles,
        step: int | None,
    ) -> None:
        """`found` is the result of the first comparison with the queue, `step` that of the newest checkpoint."""
        self._queue = queue
        self._ledger = ledger
        self._journal = journal
        self._rollouts = rollouts
        self._draws = draws
        self._disk = disk
        self._position_at_start = ledger.position
        self._position_after: dict[int, Position] = {}
        self._incarnation = incarnation
        self._leftovers = set(found.leftovers)
        self._lost = set(found.lost)
        self._files = files
        self._saved = step
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Let one caller at a time read and change the draws."""
        async with self._lock:
            yield

    @property
    def state(self) -> LedgerState:
        """The state of all draws, from the ledger."""
        return self._ledger.state

    @property
    def exhausted(self) -> bool:
        """Whether the prompt stream has ended."""
        return self._draws.exhausted

    @property
    def live(self) -> int:
        """Draws without an outcome, from the ledger. `counts` compares it with the places of the draws."""
        return len(self.state.open) + self.state.journaled

    # --- a draw begins ----------------------------------------------------------------------------

    async def draw(self, number: int, version: Version) -> None:
        """Queue the draws that were lost, then up to `number` new ones."""
        if self._leftovers:
            return  # they take room in the queue until they arrive and are trimmed
        if self._lost:
            await self._requeue(version)
        first = self.state.num_drawn
        again = list(self.state.to_replay)[:number]
        drawn = [
            self._draws.replay(of, self.state.to_replay[of].position, first + i, version) for i, of in enumerate(again)
        ]
        drawn += self._draws.take(number - len(again), first + len(again), version)
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
            prompts.append(self._draws.again(draw_id, draw.position, attempt, version))
        await self._book(*events)
        await self._queue.push(prompts)
        self._lost.clear()

    async def recall(self, failed: Sequence[int]) -> None:
        """Draw the rows of these failed draws again, as the next draws."""
        if failed:
            await self._book(Recalled(draws=list(failed)))

    async def retire(self, rows: Iterable[str]) -> None:
        """Never draw these rows again."""
        if new := [row for row in dict.fromkeys(rows) if not self._draws.is_retired(row)]:
            await self._book(*(Retired(row=row) for row in new))
            for row in new:
                self._draws.retire(row)

    # --- a result arrives -------------------------------------------------------------------------

    async def trim_decided(self, taken: Sequence[Taken]) -> list[Taken]:
        """Trim the results of draws that are no longer open; returns the other results."""
        assert self._lock.locked()
        decided = [item for item in taken if item.draw_id not in self.state.open]
        if decided:
            await self._queue.trim(decided)
            self._leftovers.difference_update(item.draw_id for item in decided)
        return [item for item in taken if item.draw_id in self.state.open]

    async def decide(self, endings: Sequence[Ending]) -> None:
        """Record outcomes in the ledger, then trim the results."""
        if not endings:
            return
        await self._book(*map(_decided, endings))
        for taken, outcome, cause in endings:
            await self._rollouts.put(taken.result, outcome, cause)
        await self._queue.trim([ending.taken for ending in endings])

    async def journal(self, step: int, batch: Sequence[tuple[Taken, Group]]) -> None:
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

    async def replay(self, step: int) -> list[Group]:
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

    # --- a step ends ------------------------------------------------------------------------------

    async def train(self, step: int, tokens: int, wasted: int) -> None:
        """Record that the learner took the step."""
        self.state.forget(step - 1)
        await self._book(Trained(step=step, tokens=tokens, wasted=wasted))
        self._position_after[step] = self._ledger.position

    async def write_rollouts(self) -> None:
        """Wait until all records of ended draws are on disk."""
        await self._rollouts.flush()

    async def complete(self, step: int) -> None:
        """Add the orchestrator's part and the marker to a checkpoint, then remove the journal that it covers.

        The part names the position of the ledger after `step`, and its state there: the run may be further by now.
        """
        position = self._position_after.get(step, self._position_at_start)
        part = checkpoint_dir.Part(
            step=step,
            incarnation=self._incarnation,
            ledger_incarnation=position.incarnation,
            ledger_bytes=position.num_bytes,
        )
        await self._disk.write(partial(in_thread, self._complete, part))
        self._saved = step
        self._position_after = {later: place for later, place in self._position_after.items() if later > step}

    def _complete(self, part: checkpoint_dir.Part) -> None:
        # A newer start does not know this checkpoint, and needs the journal.
        self._ledger.check_newest()
        # The state is folded from what is on disk, from the checkpoint before.
        state = checkpoint_dir.state_at(self._files, part.position, self._saved)
        state.forget(part.step)
        checkpoint_dir.complete(self._files.checkpoints, part, state)
        self._journal.forget(part.step)

    # --- all draws at once ------------------------------------------------------------------------

    async def counts(self) -> tuple[Counts, int]:
        """The queue's counts, and the number of draws in flight, counted where they are.

        Raises:
            RunEnded: drawn = trained + zero_gradient + stale + failed + in_flight does not hold.
        """
        assert self._lock.locked()
        counts = await self._queue.counts(TRAIN_LANE)
        in_flight = counts.live - len(self._leftovers) + len(self._lost) + self.state.journaled
        drawn, ended = self.state.num_drawn, self.state.outcomes
        if drawn != ended.total() + in_flight:
            raise RunEnded(
                f"the draws do not add up: {drawn} drawn, {dict(ended)}, and {in_flight} in flight: {counts}, "
                f"{self.state.journaled} journaled, {len(self._lost)} lost, {len(self._leftovers)} left over"
            )
        return counts, in_flight

    async def queued(self) -> list[int]:
        """The open draws that no actor holds."""
        return [draw for draw in await self._queue.queued(TRAIN_LANE) if draw in self.state.open]

    async def reconcile(self, answered: Collection[int]) -> Reconciled:
        """Claim the queue again and compare it with the ledger, after it may have lost writes.

        The result has the draws that were lost since the last comparison. Those before may still wait to be queued.

        Args:
            answered: open draws whose results had arrived.
        """
        assert self._lock.locked()
        await self._queue.claim(self._incarnation)
        found = await reconcile(self._queue, self.state, answered)
        before, self._lost = self._lost, set(found.lost)
        self._leftovers = set(found.leftovers)
        return found._replace(lost=found.lost - before)

    def check_newest(self) -> None:
        """Raises Superseded when a newer start has taken over the run."""
        self._ledger.check_newest()

    async def close(self) -> None:
        """Write pending records and close the files."""
        try:
            await self._rollouts.close()
        finally:
            self._ledger.close()

    async def _book(self, *events: Line) -> None:
        assert self._lock.locked()

        async def append() -> None:
            self._ledger.append(*events)

        await self._disk.write(append)


async def reconcile(queue: PromptQueue, state: LedgerState, answered: Collection[int] = ()) -> Reconciled:
    """Compare the queue with the ledger, and correct the queue: the ledger is the authority.

    Args:
        answered: open draws whose results had arrived. If the queue lost such a result, no actor works on its lease.

    Raises:
        ResourceError: the queue holds draws that the ledger never made.
    """
    places = await queue.inventory(TRAIN_LANE)
    present = set(places)
    if unknown := [draw_id for draw_id in present if draw_id >= state.num_drawn]:
        raise ResourceError(
            f"the queue holds {len(unknown)} prompts that this run never drew: another run of the same name uses it; "
            "give this one another --run.name or another --queue.url"
        )
    ended = present - state.open.keys()
    orphaned = {draw_id for draw_id in answered if places.get(draw_id) is QueuePlace.LEASED}
    # Look again instead of trusting the answer of `withdraw`: a call that is repeated after a lost answer withdraws 0.
    await queue.withdraw(ended | orphaned, TRAIN_LANE)
    withdrawn = (ended | orphaned) - (await queue.inventory(TRAIN_LANE)).keys()
    lost = (state.open.keys() - present) | (orphaned & withdrawn)
    await queue.forget_done(lost, TRAIN_LANE)
    return Reconciled(ended - withdrawn, lost, withdrawn - orphaned)


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
