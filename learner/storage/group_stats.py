"""Statistics of scored groups for the metrics. They are sums, so they merge in any order and survive a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from pathlib import PurePath
from typing import TypeVar

import msgspec
import numpy as np

from olmorl.messages import Completion, Group, Result

Sums = TypeVar("Sums", int, "Moments", "PartScore", "TeacherScore", "EpisodeScore")
MOST_LOGGED = 128
"""Most logged names in a line: the first in alphabetical order."""


class Moments(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Count, sum and sum of squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @classmethod
    def of(cls, *values: float) -> Moments:
        return cls(len(values), sum(values), sum(value * value for value in values))

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """The population standard deviation."""
        if not self.count:
            return None
        return sqrt(max(self.squares / self.count - (self.total / self.count) ** 2, 0.0))


class PartScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sums over the groups of one verifier, or of one data source."""

    groups: int = 0
    """Scored groups."""
    failed: int = 0
    """Draws that failed."""
    completions: int = 0
    rewards: Moments = Moments()
    solve_rate: float = 0.0
    """Sum over groups of the share of their completions that are solved."""
    tokens: int = 0
    truncated: int = 0

    def __add__(self, other: PartScore) -> PartScore:
        return PartScore(
            self.groups + other.groups,
            self.failed + other.failed,
            self.completions + other.completions,
            self.rewards + other.rewards,
            self.solve_rate + other.solve_rate,
            self.tokens + other.tokens,
            self.truncated + other.truncated,
        )

    def fields(self) -> dict[str, float | None]:
        """The counts and means; None where nothing was scored."""
        return {
            "groups": self.groups,
            "failed": self.failed,
            "solve_rate_mean": self.solve_rate / self.groups if self.groups else None,
            "completion_tokens_mean": self.tokens / self.completions if self.completions else None,
            "truncated_fraction": self.truncated / self.completions if self.completions else None,
        }


class TeacherScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sums over the answers that a teacher scored."""

    answers: int = 0
    tokens: int = 0
    """Tokens whose log-probability is finite in the engine."""
    kl: float = 0.0
    """Sum over these tokens of log pi_student - log pi_teacher, in nats."""

    def __add__(self, other: TeacherScore) -> TeacherScore:
        return TeacherScore(self.answers + other.answers, self.tokens + other.tokens, self.kl + other.kl)

    def fields(self) -> dict[str, float | None]:
        """The divergence of the student from its teacher, in nats a token and in nats an answer."""
        return {
            "teacher_kl_mean": self.kl / self.tokens if self.tokens else None,
            "teacher_kl_answers": self.kl / self.answers if self.answers else None,
        }


class EpisodeScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sums over the episodes that ended in one way."""

    episodes: int = 0
    turns: int = 0
    between_s: float = 0.0
    """From the last token of a turn to the request of one that continues it."""
    seconds: float = 0.0
    """From the first request to the last token."""

    def __add__(self, other: EpisodeScore) -> EpisodeScore:
        return EpisodeScore(
            self.episodes + other.episodes,
            self.turns + other.turns,
            self.between_s + other.between_s,
            self.seconds + other.seconds,
        )

    def fields(self) -> dict[str, float | None]:
        """The means over these episodes, of which there is at least one."""
        return {
            "episode_turns_mean": self.turns / self.episodes,
            "episode_between_turns_s_mean": self.between_s / self.episodes,
            "episode_s_mean": self.seconds / self.episodes,
        }


class Score(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Sums over scored groups and their completions, and counts of failed draws."""

    groups: int = 0
    completions: int = 0
    rewards: Moments = Moments()
    verifiers: Mapping[str, Moments] = msgspec.field(default_factory=dict)
    logged: Mapping[str, Moments] = msgspec.field(default_factory=dict)
    """By name, one value for each group whose functions logged it."""
    solve_rate: float = 0.0
    """Sum over groups of the share of their completions that are solved."""
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    prompt_tokens: int = 0
    """Once for each group."""
    sources: Mapping[str, PartScore] = msgspec.field(default_factory=dict)
    """By data source: the file or the hub set of the row."""
    judged: Mapping[str, PartScore] = msgspec.field(default_factory=dict)
    """By verifier, over the groups that it judged. The rewards are in `verifiers`."""
    failures: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Draws that failed, by cause. Only `failed` of the parts counts them too."""
    taught: Mapping[str, TeacherScore] = msgspec.field(default_factory=dict)
    """By data source, over the groups that a teacher scored."""
    exits: Mapping[str, EpisodeScore] = msgspec.field(default_factory=dict)
    """By the way in which they ended."""

    def __add__(self, other: Score) -> Score:
        return Score(
            groups=self.groups + other.groups,
            completions=self.completions + other.completions,
            rewards=self.rewards + other.rewards,
            verifiers=_added(self.verifiers, other.verifiers),
            logged=_first(_added(self.logged, other.logged)),
            solve_rate=self.solve_rate + other.solve_rate,
            tokens=self.tokens + other.tokens,
            longest=max(self.longest, other.longest),
            truncated=self.truncated + other.truncated,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            sources=_added(self.sources, other.sources),
            judged=_added(self.judged, other.judged),
            failures=_added(self.failures, other.failures),
            taught=_added(self.taught, other.taught),
            exits=_added(self.exits, other.exits),
        )

    def fields(self) -> dict[str, float | None]:
        """The fields `metrics.SCORED` and the fields of each verifier; None where nothing was scored."""
        line = {
            "reward_mean": self.rewards.mean,
            "reward_std": self.rewards.std,
            "solve_rate_mean": self.solve_rate / self.groups if self.groups else None,
            "completion_tokens_mean": self.tokens / self.completions if self.completions else None,
            "completion_tokens_max": self.longest if self.completions else None,
            "truncated_fraction": self.truncated / self.completions if self.completions else None,
        }
        for name, moments in sorted(self.verifiers.items()):
            line |= {f"reward_{name}_mean": moments.mean, f"reward_{name}_std": moments.std}
        return line | self.logged_fields()

    def part_fields(self) -> dict[str, float | None]:
        """The fields of each verifier and data source, the failures by cause, and the episodes by exit."""
        line: dict[str, float | None] = {f"failures_{cause}": n for cause, n in sorted(self.failures.items())}
        line |= {f"exits_{exit_}": each.episodes for exit_, each in sorted(self.exits.items())}
        line |= self._episode_fields()
        for name, part in sorted(self.judged.items()):
            line |= {f"verifier_{name}_{key}": value for key, value in part.fields().items()}
        for name, part in sorted(self.sources.items()):
            values = part.fields() | {"reward_mean": part.rewards.mean}
            line |= {f"source_{name}_{key}": value for key, value in values.items()}
        for name, one in sorted(self.taught.items()):
            line |= {f"source_{name}_{key}": value for key, value in one.fields().items()}
        return line | (sum(self.taught.values(), TeacherScore()).fields() if self.taught else {})

    def batch_fields(self) -> dict[str, float | None]:
        """Length and time of what a step trains. Beside those of all that was scored they show whether slow ones
        starve."""
        length = self.tokens / self.completions if self.completions else None
        of_episodes = {f"batch_{name}": value for name, value in self._episode_fields().items()}
        return {"batch_completion_tokens_mean": length, **of_episodes}

    def _episode_fields(self) -> dict[str, float | None]:
        return sum(self.exits.values(), EpisodeScore()).fields() if self.exits else {}

    def logged_fields(self) -> dict[str, float | None]:
        """The values that user functions logged: means over groups, under a prefix of their own."""
        return {f"logged_{name}_mean": moments.mean for name, moments in sorted(self.logged.items())}


def _added(one: Mapping[str, Sums], other: Mapping[str, Sums]) -> dict[str, Sums]:
    """The sums by name. What only one side has stays as it is."""
    return {**one, **other, **{name: one[name] + other[name] for name in one.keys() & other.keys()}}


def _first(logged: Mapping[str, Moments]) -> dict[str, Moments]:
    """The first names alphabetically, so that the order of merging does not matter."""
    return {name: logged[name] for name in sorted(logged)[:MOST_LOGGED]}


def score(group: Group) -> Score:
    """The score of one group."""
    verifiers: dict[str, Moments] = {}
    logged: dict[str, list[float]] = {}
    for completion in group.completions:
        for name, verdict in completion.verdicts.items():
            if verdict.reward is not None:
                verifiers[name] = verifiers.get(name, Moments()) + Moments.of(verdict.reward)
            for metric, value in verdict.logged.items():
                logged.setdefault(metric, []).append(value)
    rewards = Moments.of(*group.rewards)
    rate, truncated = solve_rate(group), sum(c.finish_reason == "length" for c in group.completions)
    judged = PartScore(1, 0, len(group.completions), Moments(), rate, group.num_tokens, truncated)
    return Score(
        groups=1,
        completions=len(group.completions),
        rewards=rewards,
        verifiers=verifiers,
        logged=_first({name: Moments.of(sum(values) / len(values)) for name, values in logged.items()}),
        solve_rate=rate,
        tokens=group.num_tokens,
        longest=max(len(c.token_ids) for c in group.completions),
        truncated=truncated,
        prompt_tokens=len(group.prompt.token_ids),
        sources={source(group.prompt.row): msgspec.structs.replace(judged, rewards=rewards)},
        judged=dict.fromkeys(sorted(verifiers), judged),
        taught={source(group.prompt.row): one} if (one := _taught(group)).answers else {},
        exits=_exits(group),
    )


def _exits(group: Group) -> dict[str, EpisodeScore]:
    exits: dict[str, EpisodeScore] = {}
    for completion in group.completions:
        if completion.turns:
            turns = completion.turns
            seconds = max(turn.ended_at for turn in turns) - min(turn.asked_at for turn in turns)
            one = EpisodeScore(1, len(completion.turns), _between_s(completion), seconds)
            exits = _added(exits, {completion.exit: one})
    return exits


def _between_s(episode: Completion) -> float:
    continued = ((turn, episode.turns[turn.parent]) for turn in episode.turns if turn.parent >= 0)
    return sum(turn.asked_at - before.ended_at for turn, before in continued)


def _taught(group: Group) -> TeacherScore:
    total = TeacherScore()
    for completion in group.completions:
        if completion.teacher_logprobs is not None:
            differences = completion.logprobs.astype(np.float64) - completion.teacher_logprobs
            known = differences[np.isfinite(differences)]
            total += TeacherScore(1, len(known), float(known.sum()))
    return total


def failure(result: Result, cause: str) -> Score:
    """The score of a draw that failed: it is counted, and nothing of it is scored."""
    failed = PartScore(failed=1)
    # A malformed group says in its cause what is wrong with it.
    return Score(
        sources={source(result.prompt.row): failed},
        judged=dict.fromkeys(sorted(set(result.prompt.datasets)), failed),
        failures={cause.partition(":")[0]: 1},
    )


def source(row: str) -> str:
    """The hub set that a row, `place:line`, is from, or the file with its folder: names hold no absolute path."""
    return _name(row.rpartition(":")[0])


def _name(place: str) -> str:
    path = PurePath(place or "unknown")
    return str(PurePath(*path.parts[1:][-2:])) if path.is_absolute() else str(path)


def names_taken_twice(rows: Iterable[str]) -> list[str]:
    """A note for each name that files of several folders have: the metrics cannot tell them apart."""
    places: dict[str, list[str]] = {}
    for place in sorted({row.rpartition(":")[0] for row in rows}):
        places.setdefault(_name(place), []).append(place)
    return [
        f"data.train: {' and '.join(several)} are {name} in the metrics, as one source: rename a folder or a file"
        for name, several in places.items()
        if len(several) > 1
    ]


def solve_rate(group: Group) -> float:
    """The solved share of the completions that have a reward."""
    return sum(completion.solved for completion in group.completions) / max(len(group.rewards), 1)
