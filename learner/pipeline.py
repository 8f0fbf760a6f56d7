"""From results to batches: judge, shelve, draw, assemble. What the assembler does between two calls of the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from olmorl.config import Config
from olmorl.errors import NothingToLearn, RunEnded
from olmorl.learner import admission
from olmorl.learner.accounts import Outcome
from olmorl.learner.batch import Batch, Composer
from olmorl.learner.books import Books, Ending
from olmorl.learner.recovery import Reconciled
from olmorl.learner.samples import defect
from olmorl.learner.score import solve_rate
from olmorl.learner.shelf import Shelf
from olmorl.messages import Failure, Group, Version
from olmorl.ports import Taken


class Pipeline:
    """A batch is assembled once, at most one ahead of the step that trains, and judged for the version it trains."""

    def __init__(self, config: Config, books: Books, composer: Composer, done: int, replay_to: int) -> None:
        """`done` steps are trained; those after it, up to `replay_to`, come from the journal."""
        self._config = config
        self._schedule = config.schedule
        self._books = books
        self._composer = composer
        self._replay_to = replay_to
        self._shelf = Shelf()
        self._useless_in_a_row = 0
        self._failed_in_a_row = 0
        self._last_failure = ""
        self._assembled = done
        self.batches: dict[int, Batch] = {}
        """Ready and not yet handed out, by step."""
        self.over = False
        """The data ended, and no further batch can be filled."""

    @property
    def num_ready(self) -> int:
        """Groups that wait for a step."""
        return len(self._shelf)

    @property
    def failures(self) -> str:
        """In words, those since the last group that was scored; empty if there was none."""
        many = self._failed_in_a_row
        return f"{many} prompt(s) in a row came to no scored group, the last: {self._last_failure}" if many else ""

    async def settle(self, taken: Sequence[Taken]) -> None:
        """Decide what is filtered, keep what may be trained.

        Raises:
            NothingToLearn: too many groups in a row without a gradient.
            RunEnded: too many draws in a row failed.
        """
        endings = []
        for item in await self._books.leftovers_of(taken):
            ending = await self._judge(item)
            if ending is not None:
                endings.append(ending)
        await self._books.decide(endings)
        if self._useless_in_a_row >= self._schedule.max_useless_groups:
            raise NothingToLearn(
                f"{self._useless_in_a_row} groups in a row had equal rewards in all their completions: every prompt is "
                "solved, or none is (schedule.max_useless_groups); see rollouts/ for the verdicts"
            )
        if self._failed_in_a_row >= self._schedule.max_useless_groups:
            raise RunEnded(f"{self.failures} (schedule.max_useless_groups)")

    async def _judge(self, item: Taken) -> Ending | None:
        """How a result ends at once, or None for a group that is now on the shelf."""
        result = item.result
        if isinstance(result, Failure) and result.cause == "stale":
            return Ending(item, Outcome.STALE, result.cause)
        if isinstance(result, Failure):
            return self._failed(item, result.cause, result.detail)
        if reason := defect(result):
            return self._failed(item, f"malformed: {reason}")
        self._failed_in_a_row = 0
        await self._retire_if_solved(result)
        if self._schedule.filter_zero_gradient and not self._composer.has_gradient(result):
            self._useless_in_a_row += 1
            return Ending(item, Outcome.ZERO_GRADIENT)
        self._useless_in_a_row = 0
        starts = self._books.accounts.starts
        self._shelf.add(item, result, admission.deadline(result, self._schedule.max_lag, starts))
        return None

    def _failed(self, item: Taken, cause: str, detail: str = "") -> Ending:
        self._failed_in_a_row += 1
        self._last_failure = f"{item.result.prompt.row}: {cause}" + (f": {detail}" if detail else "")
        return Ending(item, Outcome.FAILED, cause)

    async def _retire_if_solved(self, group: Group) -> None:
        limit = self._config.data.no_resample_above
        if limit is not None and solve_rate(group) >= limit:
            await self._books.retire(group.prompt.row)

    async def reconcile(self) -> Reconciled:
        """Compare with a queue that may have lost writes: a group it does not hold any more is generated again."""
        # What it still holds arrives again, and by the name it has there now.
        answered = {taken.draw_id for taken, _ in self._shelf.clear()}
        return await self._books.reconcile(answered)

    async def draw(self, version: Version, done: int) -> None:
        """Queue as many prompts for `version`, the newest published one, as the lag allows."""
        allowed = admission.draws_allowed(
            live=self._books.live,
            published=version.number,
            done=done,
            steps=self._schedule.steps,
            batch=self._schedule.prompts_per_step,
            ahead=self._schedule.batches_ahead,
        )
        await self._books.draw(allowed, version)

    async def assemble(self, done: int) -> None:
        """Prepare the batch of the next step, and of the one after it, as far as there are groups for them."""
        while self._assembled < min(done + 2, self._schedule.steps) and await self._assemble():
            pass

    async def _assemble(self) -> bool:
        """Prepare the next step's batch; False when it has to wait."""
        step = self._assembled + 1
        accounts = self._books.accounts
        if step <= self._replay_to:
            groups = await self._books.replay(step)
        else:
            await self._drop_over_age(version=step - 1)
            chosen = self._shelf.take(self._unfinished(), step - 1, self._schedule.prompts_per_step)
            if chosen is None:
                return False
            await self._books.journal(step, chosen)
            groups = [group for _, group in chosen]
        batch = await asyncio.to_thread(self._composer.compose, step, groups, accounts.starts)
        self.batches[step] = batch
        self._assembled = step
        return True

    async def _drop_over_age(self, version: int) -> None:
        starts = self._books.accounts.starts
        masks = self._schedule.over_age == "mask"
        endings = []
        for taken, group in self._shelf.past(version):
            if not masks or not self._composer.teaches(group, version, starts):
                endings.append(Ending(taken, Outcome.STALE, "over_age"))
                self._shelf.remove(taken.draw_id)
        await self._books.decide(endings)

    def _unfinished(self) -> list[int]:
        """Deadlines of the draws that a choice must leave room for."""
        if self._schedule.over_age != "wait":
            return []
        still_open = self._books.accounts.open.items()
        return [draw.version + self._schedule.max_lag for draw_id, draw in still_open if draw_id not in self._shelf]

    async def end_of_stream(self) -> None:
        """A finite stream is over: groups that cannot fill a batch any more are left over, and end as stale."""
        finished = len(self._shelf) == len(self._books.accounts.open)
        waiting = self._assembled < self._replay_to or len(self._shelf) >= self._schedule.prompts_per_step
        if self._books.exhausted and finished and not waiting and not self._books.accounts.to_replay:
            left_over = self._shelf.clear()
            await self._books.decide([Ending(taken, Outcome.STALE, "end_of_data") for taken, _ in left_over])
            self.over = True
