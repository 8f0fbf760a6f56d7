"""Evaluation: held-out prompts through the same actors, each set in a lane of its own, with accounts of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import TypeVar

from olmorl import config
from olmorl.clock import Clock
from olmorl.errors import RunEnded
from olmorl.learner.draws import prompt_of
from olmorl.learner.score import Score, score
from olmorl.messages import Group, Prompt, Result, Version
from olmorl.ports import Queue, Row

T = TypeVar("T")
TAKE_LIMIT = 256
MOST_LIVE = 10_000
"""Prompts of a set in its lane at once: those of a larger one follow as answers are taken."""


@dataclass
class Round:
    """One set asked of one version: asked = answered + failed + in flight, and in flight = live + not yet queued."""

    version: Version
    asked: int
    ends_at: float
    queued: int = 0
    """The first so many rows of the set are or were in the lane."""
    failed: int = 0
    solved: list[tuple[int, int]] = field(default_factory=list)
    """Completions and solved ones of each answered prompt."""
    score: Score = field(default_factory=Score)
    newest: int = 0
    """Number of the newest version that computed a token of the answers."""

    @property
    def in_flight(self) -> int:
        return self.asked - self.failed - len(self.solved)

    @property
    def live(self) -> int:
        return self.in_flight - (self.asked - self.queued)

    def add(self, result: Result) -> None:
        """Book one answer or failure."""
        if not isinstance(result, Group):
            self.failed += 1
            return
        self.solved.append((len(result.completions), sum(reward >= 1 for reward in result.rewards)))
        self.score += score(result)
        versions = [span.version.number for completion in result.completions for span in completion.spans]
        self.newest = max(self.newest, *versions)

    def fields(self, name: str) -> dict[str, float | None]:
        """The `eval_<name>_*` fields. Failures are counted and take no part in the means: they are no wrong answers."""
        scored = self.score.fields()
        rates = [solved / number for number, solved in self.solved]
        values: dict[str, float | None] = {
            "accuracy": sum(rates) / len(rates) if rates else None,
            "reward_mean": scored["reward_mean"],
            "completion_tokens_mean": scored["completion_tokens_mean"],
            "truncated_fraction": scored["truncated_fraction"],
            "version": self.version.number,
            "version_newest": self.newest,
            "prompts": self.asked,
            "failed": self.failed,
            "tokens": self.score.tokens,
        }
        for k in _ks(min((number for number, _ in self.solved), default=1)):
            values[f"pass_at_{k}"] = sum(pass_at(k, *counts) for counts in self.solved) / len(self.solved)
        return {f"eval_{name}_{key}": value for key, value in values.items()}


class Evaluator:
    """Evaluation prompts never enter the training ledger and never hold up a step.

    Args:
        sets: rows of each set, by the name of its lane.
        last_step: the version after it is always evaluated, as is version 0.
    """

    def __init__(
        self,
        queue: Queue,
        sets: Mapping[str, Sequence[Row]],
        settings: config.Evaluation,
        clock: Clock,
        last_step: int,
    ) -> None:
        self._queue = queue
        self._sets = {name: rows[: settings.limit] for name, rows in sets.items() if rows}
        self._settings = settings
        self._clock = clock
        self._last_step = last_step
        self._rounds: dict[str, Round] = {}
        self._fields: dict[str, float | None] = {}
        self._asked: int | None = None

    async def start(self, answered: int | None) -> None:
        """Drop what an earlier start left in the lanes. `answered` is the newest version whose results are recorded."""
        self._asked = answered
        for name in self._sets:
            await self._queue.flush(name)

    @property
    def idle(self) -> bool:
        return not self._rounds

    def is_due(self, number: int) -> bool:
        """Whether a multiple of `every`, version 0 or the last one, was passed since the last evaluation."""
        if not self._sets or not self.idle or number == self._asked:
            return False
        if self._asked is None or number >= self._last_step:
            return True
        return number // self._settings.every > self._asked // self._settings.every

    async def ask(self, version: Version) -> None:
        """Queue every set for `version` or newer."""
        if not self._sets or version.number == self._asked:
            return
        self._asked = version.number
        for name in self._sets:
            await self._begin(name, version)

    async def ask_again(self) -> None:
        """Begin the rounds under way anew: the queue may have lost a part of them, or brought back an earlier one."""
        for name in self._sets:
            await self._queue.flush(name)
            if name in self._rounds:
                await self._begin(name, self._rounds[name].version)

    async def _begin(self, name: str, version: Version) -> None:
        current = Round(version, len(self._sets[name]), self._clock.now() + self._settings.deadline_s)
        await self._queue_more(name, current)
        self._rounds[name] = current

    async def _queue_more(self, name: str, current: Round) -> None:
        """As many as the lane has room for."""
        rows, end = self._sets[name], min(current.asked, current.queued + MOST_LIVE - current.live)
        await self._queue.push([self._prompt(name, rows[i], i, current.version) for i in range(current.queued, end)])
        current.queued = end

    async def collect(self, paused: bool) -> None:
        """Take what has been answered; close the rounds that are complete or past their deadline.

        Args:
            paused: nobody answers; the deadline of a round under way counts from the end of the pause.

        Raises:
            RunEnded: the accounts of a lane do not add up.
        """
        for name, current in list(self._rounds.items()):
            if paused:
                current.ends_at = self._clock.now() + self._settings.deadline_s
            while taken := await self._queue.take(TAKE_LIMIT, name, 0):
                for item in taken:
                    current.add(item.result)
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
                self._fields |= current.fields(name)
                del self._rounds[name]

    def results(self) -> dict[str, float | None]:
        """The fields of the rounds that were closed since the last call."""
        fields, self._fields = self._fields, {}
        return fields

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
    """Probability that one of k samples is right, estimated without bias from `number` samples of which `solved` are.

    arXiv 2107.03374, equation 1.
    """
    return 1.0 - comb(number - solved, k) / comb(number, k)


def _ks(limit: int) -> list[int]:
    """The k of pass@k: powers of two, and the number of samples."""
    return [2**i for i in range(1, limit.bit_length()) if 2**i < limit] + ([limit] if limit > 1 else [])


def newest_version(lines: Sequence[Mapping[str, object]]) -> int | None:
    """The newest version whose evaluation stands in these metric lines."""
    keys = ((key, value) for line in lines for key, value in of_evaluation(line).items())
    versions = [value for key, value in keys if key.endswith("_version")]
    return max((version for version in versions if isinstance(version, int)), default=None)


def of_evaluation(line: Mapping[str, T]) -> dict[str, T]:
    """The fields of a metric line that are of an evaluation."""
    return {key: value for key, value in line.items() if key.startswith("eval_")}
