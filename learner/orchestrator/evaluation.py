"""Evaluation: held-out prompts go through the same actors. Each set has its own lane and its own counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import comb

from olmorl import config
from olmorl.clock import Clock
from olmorl.errors import RunEnded
from olmorl.learner.batching.samples import defect
from olmorl.learner.orchestrator.draw_source import prompt_of
from olmorl.learner.storage.group_stats import Score, score
from olmorl.learner.storage.metrics_log import Fields
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import Failure, Group, Prompt, Result, Version
from olmorl.metrics import of_evaluation
from olmorl.ports import Queue, Row

TAKE_LIMIT = 256
MOST_LIVE = 10_000
"""Most prompts of one set in its lane. More follow as answers are taken."""


@dataclass
class Round:
    """One set, asked of one version. asked = answered + failed + in flight; in flight = live + not queued."""

    version: Version
    asked: int
    ends_at: float
    queued: int = 0
    """Rows of the set that are or were in the lane."""
    failed: int = 0
    solved: list[tuple[int, int]] = field(default_factory=list)
    """For each answered prompt: its completions with a reward, and how many of them are solved."""
    score: Score = field(default_factory=Score)
    answered_by: tuple[int, int] | None = None
    """The oldest and the newest version that computed a token of the answers."""

    @property
    def in_flight(self) -> int:
        return self.asked - self.failed - len(self.solved)

    @property
    def live(self) -> int:
        return self.in_flight - (self.asked - self.queued)

    def add(self, result: Result) -> str:
        """Count one answer or failure; returns why it does not count as an answer, if it does not."""
        if cause := _failed(result):
            self.failed += 1
            return cause
        assert isinstance(result, Group)
        self.solved.append((len(result.rewards), sum(one.solved for one in result.completions)))
        self.score += score(result)
        versions = [span.version.number for completion in result.completions for span in completion.spans]
        versions += self.answered_by or ()
        self.answered_by = min(versions), max(versions)
        return ""

    def fields(self, name: str) -> dict[str, float | None]:
        """The `eval_<name>_*` fields. A failure is counted, but it is not a wrong answer: the means leave it out."""
        scored = self.score.fields()
        rates = [solved / number for number, solved in self.solved]
        oldest, newest = self.answered_by or (None, None)
        values: dict[str, float | None] = {
            "accuracy": sum(rates) / len(rates) if rates else None,
            "reward_mean": scored["reward_mean"],
            "completion_tokens_mean": scored["completion_tokens_mean"],
            "truncated_fraction": scored["truncated_fraction"],
            "version": self.version.number,
            "version_oldest": oldest,
            "version_newest": newest,
            "prompts": self.asked,
            "failed": self.failed,
            "tokens": self.score.tokens,
        }
        for verifier, moments in sorted(self.score.verifiers.items()):
            # A function may have the name of a field.
            key = f"{verifier}_mean" if f"{verifier}_mean" not in values else f"reward_{verifier}_mean"
            values[key] = moments.mean
        for key, mean in self.score.logged_fields().items():
            values.setdefault(key, mean)
        for k in _ks(max((number for number, _ in self.solved), default=1)):
            # Functions may give some completions no reward.
            chances = [pass_at(k, number, solved) for number, solved in self.solved if number >= k]
            values[f"pass_at_{k}"] = sum(chances) / len(chances)
        return {f"eval_{name}_{key}": value for key, value in values.items()}


def _failed(result: Result) -> str:
    """Why a result is no answer; empty for one with a reward."""
    if isinstance(result, Failure):
        return result.cause
    return defect(result) or ""


class Evaluator:
    """Evaluation prompts never enter the training ledger and never delay a step.

    Args:
        sets: rows of each set, by the name of its lane.
        rollouts: gets the answers of each round, which have a file of their own.
        last_step: the version after it is always evaluated, and so is version 0.
        recorded: results of steps that are replayed, by step.
        tokens: of all answers before this start.
        every: `evaluation.every` at a version; None: the recipe's.
    """

    def __init__(
        self,
        queue: Queue,
        sets: Mapping[str, Sequence[Row]],
        settings: config.Evaluation,
        clock: Clock,
        rollouts: RolloutLog,
        last_step: int,
        recorded: Mapping[int, Fields] | None = None,
        tokens: int = 0,
        every: Callable[[int], int] | None = None,
    ) -> None:
        self._queue = queue
        self._sets = {name: rows[: settings.limit] for name, rows in sets.items() if rows}
        self._settings = settings
        self._clock = clock
        self._rollouts = rollouts
        self._last_step = last_step
        self._recorded = recorded or {}
        self._rounds: dict[str, Round] = {}
        self._fields: dict[str, float | None] = {}
        self._asked: int | None = None
        self._tokens = tokens
        self._every = every or (lambda _: settings.every)
        self._epoch = ""
        """The queue's when the current rounds began, or began again."""
        self._lock = asyncio.Lock()

    async def start(self, lines: Iterable[Fields], epoch: str) -> None:
        """Empty the lanes of the queue, which is in `epoch`. `lines` are the metrics of the run, the newest first."""
        replayed = [fields for _, fields in sorted(self._recorded.items(), reverse=True)]
        self._asked, self._epoch = newest_version(chain(replayed, lines if self._sets else ())), epoch
        for name in self._sets:
            await self._queue.flush(name)

    @property
    def idle(self) -> bool:
        return not self._rounds

    def _is_due(self, number: int) -> bool:
        """Whether `number` is version 0, the last one, or the first after a multiple of `every`."""
        if not self._sets or not self.idle or number == self._asked:
            return False
        if self._asked is None or number >= self._last_step:
            return True
        every = self._every(number)
        return number // every > self._asked // every

    async def begin_if_due(self, version: Version) -> None:
        """Queue every set for `version` or newer, if `version` is to be evaluated."""
        async with self._lock:
            if self._is_due(version.number):
                await self._begin(version)

    async def begin(self, version: Version) -> None:
        """Queue every set for `version` or newer."""
        async with self._lock:
            await self._begin(version)

    async def _begin(self, version: Version) -> None:
        if not self._sets or version.number == self._asked:
            return
        self._asked = version.number
        for name in self._sets:
            await self._begin_round(name, version)

    async def _restart_rounds(self) -> None:
        """Start the current rounds again: the queue may have lost prompts, or restored prompts of an earlier round."""
        for name in self._sets:
            await self._queue.flush(name)
            if name in self._rounds:
                version = self._rounds[name].version
                await self._rollouts.restart_evaluation(version.number, name)
                await self._begin_round(name, version)

    async def _begin_round(self, name: str, version: Version) -> None:
        current = Round(version, len(self._sets[name]), self._clock.now() + self._settings.deadline_s)
        await self._queue_more(name, current)
        self._rounds[name] = current

    async def _queue_more(self, name: str, current: Round) -> None:
        """Queue as many prompts as the lane has room for."""
        rows, end = self._sets[name], min(current.asked, current.queued + MOST_LIVE - current.live)
        await self._queue.push([self._prompt(name, rows[i], i, current.version) for i in range(current.queued, end)])
        current.queued = end

    async def collect(self, epoch: str, paused: bool) -> None:
        """Take answers. Close the rounds that are complete or past their deadline.

        Args:
            epoch: the queue's. After a restart of the queue, the rounds begin again.
            paused: no actor answers, so the deadline of each round begins again after the pause.

        Raises:
            RunEnded: the counts of a lane do not add up.
        """
        async with self._lock:
            if epoch != self._epoch:
                await self._restart_rounds()
                self._epoch = epoch
            try:
                await self._collect(paused)
            except RunEnded:
                # The queue may have been restarted meanwhile: then the next call begins the rounds again.
                if await self._queue.epoch() == epoch:
                    raise

    async def _collect(self, paused: bool) -> None:
        for name, current in list(self._rounds.items()):
            if paused:
                current.ends_at = self._clock.now() + self._settings.deadline_s
            while taken := await self._queue.take(TAKE_LIMIT, name, 0):
                answers = [(item.result, current.add(item.result)) for item in taken]
                self._tokens += sum(result.num_tokens for result, _ in answers)
                await self._rollouts.put_evaluation(current.version.number, name, answers)
                await self._queue.trim(taken)
            counts = await self._queue.counts(name)
            if counts.live != current.live:
                raise RunEnded(f"evaluation {name}: {current.live} prompts in flight, {counts.live} in the queue")
            if current.in_flight and self._clock.now() > current.ends_at:
                await self._queue.flush(name)
                current.failed += current.in_flight
            if current.in_flight:
                await self._queue_more(name, current)
            else:
                await self._rollouts.end_evaluation(current.version.number, name)
                self._fields |= current.fields(name)
                del self._rounds[name]

    def results(self, step: int | None = None) -> dict[str, float | int | str | None]:
        """New results, the results of `step` from before its replay, and the total of tokens."""
        fields, self._fields = self._fields, {}
        recorded = self._recorded.get(step, {}) if step is not None else {}
        totals = {"tokens_evaluation_total": self._tokens} if step is not None or fields else {}
        return {**recorded, **fields, **totals}

    def _prompt(self, name: str, row: Row, index: int, version: Version) -> Prompt:
        return prompt_of(
            row,
            lane=name,
            draw_id=version.number * len(self._sets[name]) + index,
            attempt=1,
            group_size=self._settings.samples,
            min_version=version,
        )


def pass_at(k: int, number: int, solved: int) -> float:
    """Unbiased estimate of the probability that one of k samples is right, from `solved` right ones of `number`.

    arXiv 2107.03374, equation 1.
    """
    return 1.0 - comb(number - solved, k) / comb(number, k)


def _ks(limit: int) -> list[int]:
    """The k of pass@k: powers of two, and the number of samples."""
    return [2**i for i in range(1, limit.bit_length()) if 2**i < limit] + ([limit] if limit > 1 else [])


def newest_version(lines: Iterable[Mapping[str, object]]) -> int | None:
    """The newest version whose evaluation is in these metric lines, the newest lines first."""
    for line in lines:
        versions = [value for key, value in of_evaluation(line).items() if key.endswith("_version")]
        if known := [version for version in versions if isinstance(version, int)]:
            return max(known)
    return None
