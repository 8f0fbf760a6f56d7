"""Decides which groups may train, which of them a step takes, how the others end, and how many prompts are drawn.

Changes only its own state: `Draws` writes what is decided here.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from olmorl.clock import Clock
from olmorl.config import KV_HEADROOM, Config
from olmorl.errors import NothingToLearn, RunEnded
from olmorl.learner.batching import scheduling
from olmorl.learner.batching.batch import BatchBuilder
from olmorl.learner.batching.draw_ahead import DrawAhead, VersionWait
from olmorl.learner.batching.samples import defect
from olmorl.learner.batching.scheduling import OldestVersions, ReadyGroups
from olmorl.learner.storage.group_stats import solve_rate
from olmorl.learner.storage.ledger_state import LedgerState, Outcome, Start
from olmorl.messages import ActorStatus, Failure, Group, Version
from olmorl.ports import Taken

MOST_UNSCORABLE = 48
"""Unscorable groups in a row that end the run: no verifier or function works, and the next group would fail too."""
_DOWN = "_down"
"""Suffix of causes that name an external service without an answer. It may come back."""


class Ending(NamedTuple):
    """How a draw ends without being trained."""

    taken: Taken
    outcome: Outcome
    cause: str = ""


class ResultStreaks:
    """`check` ends the run after too many failed draws, unscorable groups or groups without a gradient in a row."""

    def __init__(self, limit: int) -> None:
        """`limit` is `schedule.max_useless_groups`."""
        self._limit = limit
        self._without_gradient = 0
        self._unscorable = 0
        self._last_failure = ""
        self.failed = 0
        """Draws that failed since the last scored group."""

    @property
    def failures(self) -> str:
        """The draws that failed since the last scored group, in words; empty without any."""
        return (
            f"{self.failed} prompt(s) in a row gave no scored group, the last: {self._last_failure}"
            if self.failed
            else ""
        )

    def scored(self, *, has_gradient: bool) -> None:
        """Note a group with rewards."""
        self.failed = self._unscorable = 0
        self._without_gradient = 0 if has_gradient else self._without_gradient + 1

    def failure(self, row: str, cause: str, detail: str) -> None:
        """Note a draw of a data row that gave no scored group."""
        self.failed += 1
        if cause == "unscorable":
            is_down = detail.partition(":")[0].endswith(_DOWN)
            self._unscorable = 0 if is_down else self._unscorable + 1
        self._last_failure = f"{row}: {cause}" + (f": {detail}" if detail else "")

    def check(self) -> None:
        """Check all streaks.
        Raises:
            NothingToLearn: too many groups in a row without a gradient.
            RunEnded: too many draws in a row failed.
        """
        if self._without_gradient >= self._limit:
            raise NothingToLearn(
                f"{self._without_gradient} groups in a row had equal rewards in all their completions: every prompt is "
                "solved, or none is, or functions reward fewer than two completions of a group "
                "(schedule.max_useless_groups); see rollouts/ for the verdicts"
            )
        if self._unscorable >= min(self._limit, MOST_UNSCORABLE):
            raise RunEnded(f"{self.failures}: correct the verifier, the function or the data, then --resume")
        if self.failed >= self._limit:
            raise RunEnded(f"{self.failures} (schedule.max_useless_groups)")


class Batcher:
    """Each batch is chosen once, at most one step ahead of the training, and for the version that it trains."""

    def __init__(self, config: Config, builder: BatchBuilder, clock: Clock, done: int) -> None:
        """`done` steps are trained."""
        self._config = config
        self._schedule = config.schedule
        self._builder = builder
        self._ahead = DrawAhead(clock, config.schedule.prompts_per_step)
        self._oldest = OldestVersions()
        self._version_wait = VersionWait(clock, config.schedule.max_lag + 1)
        self._never_filled = False
        self.ready = ReadyGroups()
        """Groups that wait for a step."""
        self.streaks = ResultStreaks(config.schedule.max_useless_groups)
        self.last_built = done
        """The newest step whose batch is built."""
        self.waits_for_unfinished = False
        """There are enough groups for a step, and unfinished draws would grow too old if it took them."""

    # --- results ------------------------------------------------------------------------------------

    def judge(self, taken: Sequence[Taken], starts: Sequence[Start]) -> list[Ending]:
        """Keep the groups that may train; returns how the other draws end."""
        endings = []
        for item in taken:
            ending = self._judge(item, starts)
            self._ahead.finished(item.draw_id, useful=ending is None)
            if ending is not None:
                endings.append(ending)
        return endings

    def _judge(self, item: Taken, starts: Sequence[Start]) -> Ending | None:
        result = item.result
        if isinstance(result, Failure):
            if result.cause == "stale":
                return Ending(item, Outcome.STALE, result.cause)
            return self._failed(item, result.cause, result.detail)
        if reason := defect(result):
            return self._failed(item, f"malformed: {reason}")
        if self._config.objective.kl_reference and all(one.reference_logprobs is None for one in result.completions):
            return Ending(item, Outcome.STALE, "no_reference")  # made before the recipe had one
        filters = self._schedule.filter_zero_gradient
        teaches = not filters or self._builder.has_gradient(result)
        self.streaks.scored(has_gradient=teaches)
        if filters is True and not teaches:
            return Ending(item, Outcome.ZERO_GRADIENT)
        self.ready.add(item, result, scheduling.deadline(result, self._schedule.max_lag, starts))
        return None

    def _failed(self, item: Taken, cause: str, detail: str = "") -> Ending:
        self.streaks.failure(item.result.prompt.row, cause, detail)
        return Ending(item, Outcome.FAILED, cause)

    def solved_rows(self, taken: Sequence[Taken]) -> list[str]:
        """Rows that are solved often enough to be drawn no more."""
        limit = self._config.data.no_resample_above
        if limit is None:
            return []
        groups = [item.result for item in taken if isinstance(item.result, Group) and not defect(item.result)]
        return [group.prompt.row for group in groups if solve_rate(group) >= limit]

    def begin_again(self, open_draws: Iterable[int]) -> set[int]:
        """Forget the ready groups: the queue delivers them once more, under the names that they have now.

        Returns their draws.
        """
        self._oldest.forget(open_draws)
        return {taken.draw_id for taken, _ in self.ready.clear()}

    # --- batches ------------------------------------------------------------------------------------

    def drop_over_age(self, version: int, starts: Sequence[Start]) -> list[Ending]:
        """Drop the groups that are too old to train `version`; returns how their draws end."""
        masks = self._schedule.over_age == "mask"
        endings = []
        for taken, group in self.ready.past(version):
            if not masks or not self._builder.teaches(group, version, starts):
                endings.append(Ending(taken, Outcome.STALE, "over_age"))
                self.ready.remove(taken.draw_id)
        return endings

    def choose(self, step: int, state: LedgerState) -> list[tuple[Taken, Group]] | None:
        """Remove and return the groups of `step`; None when there are too few, or unfinished ones must come first."""
        if len(self.ready) < self._schedule.prompts_per_step:
            self.waits_for_unfinished = False
            return None
        # After the last step nothing can grow too old.
        unfinished = self._unfinished(state) if step < self._schedule.steps else []
        chosen = self.ready.take(unfinished, step - 1, self._schedule.prompts_per_step)
        self.waits_for_unfinished = chosen is None
        return chosen

    def _unfinished(self, state: LedgerState) -> list[int]:
        """The last versions that unfinished draws can train. A choice of groups leaves room for them."""
        if self._schedule.over_age != "wait":
            return []
        return [
            self._oldest.of(draw_id, draw.version) + self._schedule.max_lag
            for draw_id, draw in state.open.items()
            if draw_id not in self.ready
        ]

    def built(self, step: int, done: int) -> None:
        """The batch of `step` is built; `done` steps are trained."""
        self.last_built = step
        if step == done + 1:
            self._step_began()

    def assembled(self, done: int) -> None:
        """All batches are built that can be."""
        if self.last_built == done and self.waits_for_unfinished:
            self._version_wait.held_up()

    def step_ended(self, step: int, open_draws: Container[int]) -> None:
        """The learner has trained the batch of `step`."""
        self._ahead.step_ended()
        self._version_wait.step_ended()
        self._ahead.forget_all_but(open_draws)
        if self.last_built > step:
            self._step_began()

    def _step_began(self) -> None:
        self._ahead.step_began()
        self._version_wait.step_began()

    # --- draws --------------------------------------------------------------------------------------

    def allowed(self, live: int, num_open: int, version: Version, done: int, ahead: int) -> int:
        """Prompts that the lag allows to draw for `version`, the newest published one.

        Args:
            live: draws without an outcome. `num_open` of them are in no journal.
            done: steps that are trained.
            ahead: batches generated ahead.
        """
        allowed = scheduling.draws_allowed(
            live=live,
            published=version.number,
            done=done,
            to_finish=self._to_finish(done),
            batch=self._schedule.prompts_per_step,
            ahead=ahead,
        )
        if self._schedule.draw_ahead == "adaptive":
            allowed = min(allowed, self._needed(num_open, done))
        return 0 if self._version_wait.pays and version.number < self._to_come else allowed

    @property
    def _to_come(self) -> int:
        """The newest version that is published once the batches so far are trained."""
        every = self._config.weights.publish_every
        return self.last_built // every * every

    def _to_finish(self, done: int) -> int:
        """Live draws that the rest of the run needs, with spares: no step waits for a second round of draws."""
        built = max(self.last_built - done, 0) * self._schedule.prompts_per_step
        finished = built + len(self.ready)
        left = (self._schedule.steps - done) * self._schedule.prompts_per_step - finished
        return finished + self._ahead.draws_to_finish(left)

    def _needed(self, num_open: int, done: int) -> int:
        """Draws to make now, so that no batch is late."""
        ready = len(self.ready)
        built = max(self.last_built - done - 1, 0) * self._schedule.prompts_per_step
        needed = self._ahead.needed(ready + built)
        return sys.maxsize if needed is None else max(needed - (num_open - ready), 0)

    def drawn(self, draws: Iterable[int]) -> None:
        """These draws were made now."""
        self._ahead.drawn(draws)

    def paused(self) -> None:
        """The run is paused: no time that passes now says how fast it is."""
        self._ahead.paused()
        self._version_wait.paused()

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

    def not_begun(self, queued: Iterable[int], version: int, open_draws: Container[int]) -> None:
        """Note the draws that no actor has begun: no engine will begin them with a version before `version`."""
        self._oldest.not_begun(queued, version, open_draws)

    # --- the end of the data ------------------------------------------------------------------------

    def end_of_data(self) -> list[Ending]:
        """Drop the groups that can no longer fill a batch; returns how their draws end."""
        self._never_filled = self.last_built == 0
        return [Ending(taken, Outcome.STALE, "end_of_data") for taken, _ in self.ready.clear()]

    def check_data(self, state: LedgerState) -> None:
        """Raises RunEnded when the data ended before the first step."""
        if self._never_filled:
            raise RunEnded(self._why_never_filled(state))

    def _why_never_filled(self, state: LedgerState) -> str:
        outcomes = state.outcomes
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
