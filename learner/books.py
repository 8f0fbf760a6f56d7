"""The books: what the assembler does to a draw, in the order that no crash can turn into a loss or a double."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from olmorl.errors import ResourceError, RunEnded
from olmorl.learner import checkpoint, recovery
from olmorl.learner.accounts import Accounts, Decided, Line, Outcome, Recalled, Requeued, Retired, Trained
from olmorl.learner.draws import Draws
from olmorl.learner.journal import Journal
from olmorl.learner.ledger import Ledger, Position
from olmorl.learner.recovery import Reconciled, journaled
from olmorl.learner.rollouts import Rollouts
from olmorl.learner.room import Room
from olmorl.learner.score import Score, score
from olmorl.learner.thread import in_thread
from olmorl.messages import TRAIN_LANE, Group, Version
from olmorl.ports import Counts, Queue, Taken


class Ending(NamedTuple):
    """How a draw ends without being trained."""

    taken: Taken
    outcome: Outcome
    cause: str = ""


class Books:
    """Durable first: a draw is in the ledger before the queue, and a result is trimmed after its outcome is booked.

    The caller makes one call at a time, so that no count is read between the two halves of a change.
    """

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        journal: Journal,
        rollouts: Rollouts,
        draws: Draws,
        room: Room,
        incarnation: int,
        found: Reconciled,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._journal = journal
        self._rollouts = rollouts
        self._draws = draws
        self._room = room
        self._begun = ledger.position
        self._after: dict[int, Position] = {}
        self._incarnation = incarnation
        self._leftovers = set(found.leftovers)
        self._lost = set(found.lost)

    @property
    def accounts(self) -> Accounts:
        return self._ledger.accounts

    @property
    def exhausted(self) -> bool:
        """Whether the prompt stream is over."""
        return self._draws.exhausted

    @property
    def live(self) -> int:
        """Draws without an outcome, as the ledger has them; `counts` compares that with what is there."""
        return len(self.accounts.open) + self.accounts.journaled

    async def reconcile(self, answered: Collection[int]) -> Reconciled:
        """Compare with a queue that may have lost writes, also answers; it hands out its results again."""
        await self._queue.claim(self._incarnation)
        found = await recovery.reconcile(self._queue, self.accounts, answered)
        self._leftovers, self._lost = set(found.leftovers), set(found.lost)
        return found

    async def draw(self, number: int, version: Version) -> None:
        """Queue up to `number` new draws, and before them what was lost."""
        if self._leftovers:
            return  # they take room until they have arrived and are trimmed
        if self._lost:
            await self._requeue(version)
        first = len(self.accounts.draws)
        again = self.accounts.to_replay[:number]
        drawn = [
            self._draws.replay(of, self.accounts.draws[of].position, first + i, version) for i, of in enumerate(again)
        ]
        drawn += self._draws.take(number - len(again), first + len(again), version)
        if drawn:
            await self._book(*(event for event, _ in drawn))
            await self._queue.push([prompt for _, prompt in drawn])
        if again:
            await self._queue.drop_dead_letters(again, TRAIN_LANE)

    async def recall(self, failed: Sequence[int]) -> None:
        """Let the next draws be the rows of these failed ones."""
        if failed:
            await self._book(Recalled(draws=list(failed)))

    async def leftovers_of(self, taken: Sequence[Taken]) -> list[Taken]:
        """Trim what is booked already; returns the rest."""
        known = [item for item in taken if item.draw_id not in self.accounts.open]
        if known:
            await self._queue.trim(known)
            self._leftovers.difference_update(item.draw_id for item in known)
        return [item for item in taken if item.draw_id in self.accounts.open]

    async def decide(self, endings: Sequence[Ending]) -> None:
        """Book outcomes, then trim their results."""
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
            self._ledger.check(event)  # each time: a wait for room is long
            self._journal.write(step, self._incarnation, groups)

        await self._room.use(partial(in_thread, write))
        await self._book(event)
        await self._rollouts.end_step(step, groups)
        await self._queue.trim([taken for taken, _ in batch])

    async def replay(self, step: int) -> list[Group]:
        """The groups of a journaled step, in their order.

        Raises:
            ResourceError: they are damaged, or not those of the ledger.
        """
        groups = await in_thread(self._journal.read, step)
        if journaled(step, groups).draws != self.accounts.batches[step].draws:
            raise ResourceError(
                f"{self._journal.path_of(step)}: its groups are not those of the ledger; remove it and the steps after "
                "it to generate their prompts again"
            )
        recorded = await in_thread(self._rollouts.has, step)
        await self._rollouts.end_step(step, [] if recorded else groups)
        return groups

    async def train(self, step: int, tokens: int, wasted: int) -> None:
        """Book that the learner took the step."""
        await self._book(Trained(step=step, tokens=tokens, wasted=wasted))
        self._after[step] = self._ledger.position

    async def retire(self, row: str) -> None:
        """Draw a row no more."""
        await self._book(Retired(row=row))
        self._draws.retire(row)

    async def counts(self) -> tuple[Counts, int]:
        """The queue's counts, and the draws in flight as they are counted where they are.

        Raises:
            RunEnded: drawn = trained + zero_gradient + stale + failed + in_flight does not hold.
        """
        counts = await self._queue.counts(TRAIN_LANE)
        in_flight = counts.live - len(self._leftovers) + len(self._lost) + self.accounts.journaled
        drawn, ended = len(self.accounts.draws), self.accounts.outcomes
        if drawn != ended.total() + in_flight:
            raise RunEnded(
                f"the accounts do not add up: {drawn} drawn, {dict(ended)}, and {in_flight} in flight: {counts}, "
                f"{self.accounts.journaled} journaled, {len(self._lost)} lost, {len(self._leftovers)} left over"
            )
        return counts, in_flight

    async def complete(self, checkpoints: Path, step: int) -> None:
        """Add the assembler's part to a checkpoint, and the marker; then forget the journal up to there.

        The part says where the ledger stood when the step was done: the run may be further by now.
        """
        position = self._after.get(step, self._begun)
        part = checkpoint.Part(
            step=step,
            incarnation=self._incarnation,
            ledger_incarnation=position.incarnation,
            ledger_bytes=position.num_bytes,
        )
        await self._room.use(partial(in_thread, self._complete, checkpoints, part))
        self._after = {later: place for later, place in self._after.items() if later > step}

    def _complete(self, checkpoints: Path, part: checkpoint.Part) -> None:
        self._ledger.check_newest()  # it knows nothing of this checkpoint, and needs the journal
        checkpoint.complete(checkpoints, part)
        self._journal.forget(part.step)

    async def _book(self, *events: Line) -> None:
        async def append() -> None:
            self._ledger.append(*events)

        await self._room.use(append)

    async def _requeue(self, version: Version) -> None:
        prompts = []
        for draw_id in sorted(self._lost):
            draw = self.accounts.open[draw_id]
            attempt = draw.attempt + 1
            prompts.append(self._draws.again(draw_id, draw.position, attempt, version))
            await self._book(Requeued(draw=draw_id, attempt=attempt, version=version.number))
        await self._queue.push(prompts)
        self._lost.clear()


def _decided(ending: Ending) -> Decided:
    result = ending.taken.result
    return Decided(
        draw=ending.taken.draw_id,
        attempt=result.prompt.attempt,
        outcome=ending.outcome,
        cause=ending.cause,
        score=score(result) if isinstance(result, Group) and ending.outcome is not Outcome.FAILED else Score(),
    )
