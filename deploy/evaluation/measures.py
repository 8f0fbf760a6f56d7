"""The numbers of an evaluation: pass@k, avg@n, maj@k, their intervals, and paired differences of two models.

Every number is a mean over prompts of one value for each prompt, so the intervals know that answers to one prompt are
alike. An answer without a reward counts in none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from olmorl.learner.orchestrator.evaluation import pass_at

Z = 1.959963984540054
"""Normal quantile of the 95% intervals."""
METHODS = {
    "avg@n": "share of solved answers, mean over prompts",
    "pass@k": "unbiased estimator of arXiv 2107.03374; prompts with fewer than k scored answers are left out",
    "maj@k": "answers of a prompt in blocks of k, in the order of their samples; the equal answers with the most votes "
    "count; a tie counts for the share of the tied answers that is right; no answer is no vote; without votes it is 0",
    "intervals": "95%, Wilson's with the effective number of prompts p (1 - p) / (variance of the mean over prompts), "
    "and with the number of prompts where that variance is 0",
    "differences": "paired by prompt, over the prompts that both models have; 95% of the normal distribution with the "
    "standard error over prompts",
}
"""How each number is made."""


class Outcome(NamedTuple):
    """What counts of one answer."""

    solved: bool | None
    """None: it could not be scored."""
    vote: int | None
    """Equal numbers are equal answers to one prompt; None: it has no answer."""
    tokens: int
    cut: bool
    """It has reached the limit of tokens."""
    reward: float | None = None


class Answers(NamedTuple):
    """The answers to one prompt, in the order of their samples."""

    outcomes: Sequence[Outcome]
    votes: bool
    """Whether they have answers that can be equal: a program has none."""


class Estimate(NamedTuple):
    """A mean over prompts with its interval, and the values that it is the mean of."""

    mean: float
    low: float
    high: float
    values: Mapping[str, float]
    """By prompt."""


def estimates(prompts: Mapping[str, Answers], samples: int, ks: Sequence[int]) -> dict[str, Estimate]:
    """Every number that these prompts have, by its name in the table."""
    of_prompt: dict[str, Callable[[Answers], float | None]] = {f"avg@{samples}": _average}
    for k in ks:
        if k > 1:
            of_prompt[f"pass@{k}"] = lambda answers, k=k: _pass(answers, k)  # type: ignore[misc]
            of_prompt[f"maj@{k}"] = lambda answers, k=k: _majority(answers, k)  # type: ignore[misc]
    found = {}
    for name, value_of in of_prompt.items():
        values = {prompt: value_of(answers) for prompt, answers in prompts.items()}
        there = {prompt: value for prompt, value in values.items() if value is not None}
        if there:
            found[name] = estimate(there)
    return found


def estimate(values: Mapping[str, float]) -> Estimate:
    """The mean of values between 0 and 1, one for each prompt, with its interval (`METHODS`)."""
    mean, number = fmean(values.values()), len(values)
    variance = stdev(values.values()) ** 2 / number if number > 1 else 0.0
    effective = mean * (1 - mean) / variance if variance > 0 else float(number)
    middle = (mean + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * sqrt(mean * (1 - mean) / effective + Z**2 / (4 * effective**2))
    return Estimate(mean, min(max(middle - half, 0.0), mean), max(min(middle + half, 1.0), mean), values)


def difference(one: Estimate, other: Estimate) -> Estimate | None:
    """`one - other` by prompt; None without two prompts that both have."""
    values = {prompt: value - other.values[prompt] for prompt, value in one.values.items() if prompt in other.values}
    if len(values) < 2:
        return None
    mean, half = fmean(values.values()), Z * stdev(values.values()) / sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, values)


def _solved(answers: Answers) -> list[bool]:
    return [outcome.solved for outcome in answers.outcomes if outcome.solved is not None]


def _average(answers: Answers) -> float | None:
    solved = _solved(answers)
    return sum(solved) / len(solved) if solved else None


def _pass(answers: Answers, k: int) -> float | None:
    solved = _solved(answers)
    return pass_at(k, len(solved), sum(solved)) if len(solved) >= k else None


def _majority(answers: Answers, k: int) -> float | None:
    scored = [outcome for outcome in answers.outcomes if outcome.solved is not None]
    blocks = [scored[start : start + k] for start in range(0, len(scored) - k + 1, k)]
    return fmean(map(_elected, blocks)) if answers.votes and blocks else None


def _elected(block: Sequence[Outcome]) -> float:
    """The share of the answers with the most votes that is right."""
    votes = Counter(outcome.vote for outcome in block if outcome.vote is not None)
    right = {outcome.vote for outcome in block if outcome.solved}
    most = max(votes.values(), default=0)
    tied = [vote for vote, number in votes.items() if number == most]
    return sum(vote in right for vote in tied) / len(tied) if tied else 0.0
