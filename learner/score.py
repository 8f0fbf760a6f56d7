"""What a scored group adds to the metrics. Sums only, so that scores merge in any order and survive a restart."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import msgspec

from olmorl.messages import Group


class Moments(msgspec.Struct, frozen=True, array_like=True):
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
        """Of the population."""
        if not self.count:
            return None
        return sqrt(max(self.squares / self.count - (self.total / self.count) ** 2, 0.0))


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over scored groups and their completions."""

    groups: int = 0
    completions: int = 0
    rewards: Moments = Moments()
    verifiers: Mapping[str, Moments] = msgspec.field(default_factory=dict)
    solve_rate: float = 0.0
    """Sum over groups of the share of their completions that are solved (reward of 1 or more)."""
    tokens: int = 0
    longest: int = 0
    truncated: int = 0

    def __add__(self, other: Score) -> Score:
        names = {**self.verifiers, **other.verifiers}
        return Score(
            groups=self.groups + other.groups,
            completions=self.completions + other.completions,
            rewards=self.rewards + other.rewards,
            verifiers={n: self.verifiers.get(n, Moments()) + other.verifiers.get(n, Moments()) for n in names},
            solve_rate=self.solve_rate + other.solve_rate,
            tokens=self.tokens + other.tokens,
            longest=max(self.longest, other.longest),
            truncated=self.truncated + other.truncated,
        )

    def fields(self) -> dict[str, float | None]:
        """The fields `metrics.SCORED` and those of each verifier; None where nothing was scored."""
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
        return line


def score(group: Group) -> Score:
    """The score of one group."""
    verifiers: dict[str, Moments] = {}
    for completion in group.completions:
        for name, verdict in completion.verdicts.items():
            if verdict.reward is not None:
                verifiers[name] = verifiers.get(name, Moments()) + Moments.of(verdict.reward)
    return Score(
        groups=1,
        completions=len(group.completions),
        rewards=Moments.of(*group.rewards),
        verifiers=verifiers,
        solve_rate=solve_rate(group),
        tokens=group.num_tokens,
        longest=max(len(c.token_ids) for c in group.completions),
        truncated=sum(c.finish_reason == "length" for c in group.completions),
    )


def solve_rate(group: Group) -> float:
    """The share of completions whose reward is 1 or more."""
    return sum(reward >= 1 for reward in group.rewards) / len(group.completions)
