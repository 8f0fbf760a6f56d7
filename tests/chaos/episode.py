"""Runs an episode: one run with many faults, and the cost of each fault."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from subprocess import TimeoutExpired
from typing import Any, NamedTuple

from olmorl.learner.storage import rollout_log
from tests.chaos import faults
from tests.chaos.history import ENDS, journaled_otherwise, violations
from tests.chaos.rig import Ended, Hang, Rig, nothing
from tests.chaos.steps import Seen
from tests.chaos.strike import Fault, Strike

STEPS_AFTER = 2
"""Steps after a recovery until the fault is over."""
QUIET_STEPS = 3
"""Most steps between the end of one fault and the next."""


@dataclass
class Record:
    """One fault: when it was noticed and mended (s after it struck), and what was lost. None: not seen."""

    fault: str
    victim: str
    together_with: str
    noticed_s: float | None = None
    recovered_s: float | None = None
    """Until the first step after the recovery."""
    gap_s: float = 0.0
    """The longest time without a step."""
    elsewhere_s: float | None = None
    """Until the last requeued prompt was begun."""
    steps_replayed: int = 0
    tokens_wasted: int = 0
    """Tokens without a result that an actor lived to report."""
    draws_again: int = 0
    """Draws that were given to an actor again."""
    draws_lost: int = 0
    """Draws that were neither done nor in flight, in any line until the next fault."""
    draws_doubled: int = 0
    """Trained a second time in the surviving history."""


@dataclass
class Outcome:
    """The result of an episode."""

    seed: int
    records: list[Record] = field(default_factory=list)
    steps: int = 0
    hung: bool = False
    violations: list[str] = field(default_factory=list)


class Window(NamedTuple):
    """From one fault to the next."""

    record: Record
    struck_at: float
    """By the clock on the wall."""
    first: int
    """Of the steps that were seen."""


class Episode:
    """Hits the run with faults of a seeded order, one after the other and sometimes two at once.

    Args:
        pairs: the share of faults that strike while another one is not mended yet.
    """

    def __init__(self, rig: Rig, seed: int, pairs: float = 0.2) -> None:
        self._rig = rig
        self._random = Random(seed)
        self._pairs = pairs
        self._windows: list[Window] = []
        self._journaled: list[tuple[int, list[int]]] = []
        """Journaled steps at each moment without processes, and their draws in order."""
        self._went_back: dict[int, int] = {}
        """Where a resume went back to: the step, by the number of steps seen before."""
        self.outcome = Outcome(seed)

    def run(self, work: Callable[[], None]) -> Outcome:
        """Start the run, let faults strike as `work` does, stop it, look at what it left.

        Every error meanwhile, also in the suite itself, ends the episode and is a violation.
        """
        rig = self._rig
        try:
            rig.start()
            rig.more_steps(STEPS_AFTER)
            work()
            self._stop()
            self.outcome.violations += rig.left_behind()
        except Exception as error:
            self.outcome.hung = isinstance(error, (Hang, TimeoutExpired))
            self.outcome.violations.append(f"{type(error).__name__}: {error}")
            return self.outcome
        finally:
            rig.end()
        self._judge()
        return self.outcome

    def deal(self, hand: Sequence[tuple[str, Fault]]) -> None:
        """Let all faults of `hand` strike, one after the other, and now and then two at once."""
        waiting = list(hand)
        while waiting:
            number = 2 if self._may_be_two(waiting) and self._random.random() < self._pairs else 1
            self.hit(waiting[:number])
            del waiting[:number]
            self._rig.more_steps(self._random.randint(0, QUIET_STEPS))

    @staticmethod
    def _may_be_two(waiting: Sequence[tuple[str, Fault]]) -> bool:
        return len(waiting) > 1 and all(name in faults.SIDE_BY_SIDE for name, _ in waiting[:2])

    # --- one fault ----------------------------------------------------------------------------------

    def hit(self, together: Sequence[tuple[str, Fault]]) -> None:
        """Let faults strike at the same time, and wait until the run has got over them. Raises Hang and Ended."""
        rig = self._rig
        rig.steps.look()
        before, last = len(rig.steps), rig.steps.seen[-1]
        strikes: list[Strike] = []
        records: list[Record] = []
        # One that waits for its moment does not keep the others from being looked at.
        rig.meanwhile = partial(_note_who_is_noticed, strikes, records)
        for name, fault in together:
            strikes.append(fault(rig, self._random))
            others = [other for other, _ in together if other != name]
            records.append(Record(name, strikes[-1].victim, ", ".join(others)))
            self.outcome.records.append(records[-1])
        rig.meanwhile = nothing
        self._until_mended(strikes, records)
        rig.more_steps(1)
        for strike, record in zip(strikes, records, strict=True):
            record.recovered_s = time.monotonic() - strike.at
            record.steps_replayed = _replayed(last, rig.steps.since(before))
            self._windows.append(Window(record, strike.wall_at, before))
            self.outcome.violations += _broken(strike, record)
        rig.more_steps(STEPS_AFTER - 1)
        rig.until_no_orphans()
        for record in records:
            record.gap_s = rig.steps.longest_gap_s(before, strikes[0].at)

    def _until_mended(self, strikes: Sequence[Strike], records: Sequence[Record]) -> None:
        rig, resumed = self._rig, False
        ends_run = any(strike.ends_run for strike in strikes)

        def mended() -> bool:
            nonlocal resumed
            rig.steps.look()
            # Before the look for who was noticed: that comes first, and may come between the two.
            over = not ends_run and rig.alive and all(strike.mended() for strike in strikes)
            _note_who_is_noticed(strikes, records)
            if not rig.alive:
                if resumed or not ends_run:
                    raise Ended(f"the launcher ended, nobody having asked it to:\n{rig.run.output()}")
                self._resume(strikes)
                resumed = True
            return resumed or over

        rig.until(mended, " and ".join(f"{record.fault} ({record.victim}) mended" for record in records))

    def _resume(self, strikes: Sequence[Strike]) -> None:
        rig = self._rig
        assert rig.run.process is not None
        rig.run.process.wait()
        rig.run.until_gone()
        self._journaled += rig.journaled()
        ends = next(strike for strike in strikes if strike.ends_run)
        if ends.back_to is not None:
            rig.steps.look()
            self._went_back[len(rig.steps)] = ends.back_to
            self._journaled = [(step, draws) for step, draws in self._journaled if step <= ends.back_to]
        rig.start("--resume", "--change", *ends.resume)

    # --- the end ------------------------------------------------------------------------------------

    def _stop(self) -> None:
        rig = self._rig
        rig.stop()
        code = rig.run.wait(rig.patience_s)
        if code != 0:
            self.outcome.violations.append(f"exit code {code}: {rig.said()[-2000:]}")

    def _judge(self) -> None:
        rig, outcome, schedule = self._rig, self.outcome, self._rig.settings.schedule
        outcome.steps = len(rig.run.lines())
        outcome.violations += violations(rig.run.run_dir, schedule.prompts_per_step, schedule.max_lag)
        outcome.violations += _replayed_differently(rig.steps.seen, self._went_back)
        outcome.violations += journaled_otherwise(rig.run.run_dir, self._journaled)
        if rig.run.roster():
            outcome.violations.append(f"processes.json names {sorted(rig.run.roster())}")
        if "Traceback (most recent call last)" in rig.said():
            outcome.violations.append(f"the launcher printed a traceback: {rig.said()[-2000:]}")
        groups = [group for path in rollout_log.files(rig.run.run_dir / "rollouts") for group in rollout_log.read(path)]
        last = Window(Record("", "", ""), time.time(), len(rig.steps))
        for window, following in pairwise([*self._windows, last]):
            self._count_lines(window, following)
            _count_groups(window, following, groups)

    def _count_lines(self, window: Window, following: Window) -> None:
        seen = self._rig.steps.seen
        lines = [step.line for step in seen[window.first : max(following.first, window.first + 1)]]
        window.record.draws_lost = max(_unaccounted(line) for line in lines)
        before = seen[window.first - 1].line["tokens_wasted_total"]
        window.record.tokens_wasted = max(0, lines[-1]["tokens_wasted_total"] - before)


def _note_who_is_noticed(strikes: Sequence[Strike], records: Sequence[Record]) -> None:
    for strike, record in zip(strikes, records, strict=True):
        if record.noticed_s is None and strike.noticed is not None and strike.noticed():
            record.noticed_s = time.monotonic() - strike.at


def _broken(strike: Strike, record: Record) -> Iterator[str]:
    """The conditions that do not hold after recovery."""
    if strike.noticed is not None and record.noticed_s is None:
        yield f"{record.fault} ({record.victim}) was never noticed"
    if not strike.kept():
        yield f"{record.fault} ({record.victim}): {strike.kept.__doc__}"


def _unaccounted(line: Mapping[str, Any]) -> int:
    """Draws that are nowhere."""
    ended = sum(line[f"groups_{kind}_total"] for kind in ENDS)
    return int(line["prompts_drawn_total"] - ended - line["groups_in_flight"])


def _count_groups(window: Window, following: Window, groups: Sequence[Mapping[str, Any]]) -> None:
    record = window.record
    here = [group for group in groups if window.struck_at < group.get("started_at", 0.0) < following.struck_at]
    again: dict[int, float] = {}
    for group in here:
        if group["attempt"] > 1:
            again[group["prompt_id"]] = min(group["started_at"], again.get(group["prompt_id"], math.inf))
    record.draws_again = len(again)
    if again:
        record.elsewhere_s = max(again.values()) - window.struck_at
    trained = Counter(group["prompt_id"] for group in groups if group["outcome"] == "trained")
    record.draws_doubled = sum(trained[draw] > 1 for draw in {group["prompt_id"] for group in here})


def _replayed_differently(seen: Sequence[Seen], went_back: Mapping[int, int]) -> Iterator[str]:
    """A step that was reported was in the journal: done once more, it trains on the same groups.

    Args:
        went_back: steps after which the history ends, by the number of steps seen before.
    """
    first: dict[int, dict[str, Any]] = {}
    for number, step in enumerate(seen):
        if number in went_back:
            first = {done: line for done, line in first.items() if done <= went_back[number]}
        before = first.setdefault(step.line["step"], step.line)
        if any(step.line[name] != before[name] for name in ("batch_tokens", "batch_reward_mean")):
            yield f"step {step.line['step']} of incarnation {step.line['incarnation']} had other groups than before"


def _replayed(last: Seen, since: Sequence[Seen]) -> int:
    """Steps that were done once more by a later incarnation."""
    again = [seen.line["step"] for seen in since if seen.line["incarnation"] > last.line["incarnation"]]
    return max(0, max(last.line["step"], *_steps(since, last)) - min(again) + 1) if again else 0


def _steps(since: Sequence[Seen], last: Seen) -> list[int]:
    """The steps of the incarnation of `last`."""
    return [0, *(seen.line["step"] for seen in since if seen.line["incarnation"] == last.line["incarnation"])]


def order(faults: Mapping[str, Fault], number: int, random: Random) -> list[tuple[str, Fault]]:
    """This many faults: every kind in turn, each round in a different order."""
    found: list[tuple[str, Fault]] = []
    while len(found) < number:
        found += random.sample(list(faults.items()), len(faults))
    return found[:number]
