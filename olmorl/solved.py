"""Decides whether a completion is solved, for solve rates, accuracy, pass@k, retired rows and pass rates.

The reward alone cannot decide it. Functions, weights and shaping can raise the reward of a wrong answer, or lower the
reward of a right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from olmorl.messages import Verdict

ROUNDING = 1e-9
"""Tolerance of the largest reward: a sum of tenths is not exactly 1."""


def is_solved(
    built_in: Sequence[str],
    verdicts: Mapping[str, Verdict],
    reward: float,
    weights: Mapping[str, float],
    how: str,
    solved_at: float | None = None,
) -> bool:
    """Whether every built-in verifier of the row gives its best; without one, whether the reward is the largest.

    The best of a built-in verifier is 1, or 0 if its weight is negative. A verifier of weight 0 is ignored, unless all
    have weight 0. The largest reward is the largest combined reward of the functions that apply, when each gives
    between 0 and 1.

    Args:
        built_in: the keys of `verdicts` that name built-in verifiers.
        reward: the combined reward.
        weights: weight by name; a missing name has weight 1.
        how: `sum`, `mean` or `product`, as in the key `verifiers.combine`.
        solved_at: replaces the largest reward, for rows without a built-in verifier.
    """
    if built_in:
        counted = [name for name in built_in if weights.get(name, 1.0)] or built_in
        return all(_is_best(verdicts[name], weights.get(name, 1.0)) for name in counted)
    applied = [weights.get(name, 1.0) for name, verdict in verdicts.items() if verdict.reward is not None]
    goal = _largest(applied, how) if solved_at is None else solved_at
    return reward >= goal - ROUNDING * max(abs(goal), 1.0)


def _is_best(verdict: Verdict, weight: float) -> bool:
    if verdict.reward is None:
        return False
    return verdict.reward <= ROUNDING if weight < 0 else verdict.reward >= 1 - ROUNDING


def _largest(weights: Sequence[float], how: str) -> float:
    """The largest combined reward of functions with these weights, when each gives between 0 and 1."""
    if how == "product":
        return max(prod(weights), 0.0)
    best = sum(weight for weight in weights if weight > 0)
    return best / sum(weights) if how == "mean" else best
