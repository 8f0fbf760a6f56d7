"""Advantages from the rewards of a group or of a batch. Pure numpy, in fp64.

Shape letters: G completions of one group, N of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from olmorl.learner.algorithm.presets import AdvantageKind

STD_FLOOR: Final = 1e-6
"""Added to the standard deviation, so that tiny differences of rewards do not become large advantages."""
ROUNDING: Final = 1e-12
"""Rewards that differ by less than this, relative to the largest, count as equal, like 0.1 + 0.2 and 0.3."""
CANCELLED: Final = 1e-15
"""Rewards of any size that differ by less than this count as equal, like 0.1 + 0.2 - 0.3 and 0."""

WHITEN_FLOOR: Final = 1e-8
"""Added to the variance of whitened advantages."""
OVER_BATCH: Final[frozenset[AdvantageKind]] = frozenset({"whiten", "mean_whiten", "gdpo"})
"""The kinds with a part that is over the whole batch."""
_FREEDOM: Final = {"mean_std": 0, "mean_sample_std": 1, "gdpo": 1}
"""Degrees of freedom that a standard deviation loses to its mean."""

Floats = npt.NDArray[np.float64]
Rewards = Sequence[float] | Floats


def advantages(
    rewards_G: Rewards, kind: AdvantageKind, reward_scale: float = 1.0, std_floor: float = STD_FLOOR
) -> Floats:
    """The advantages of a group, before `over_batch`. All 0 if the rewards are equal up to rounding.

    `whiten` and `gae` leave the rewards: their baseline is the batch's or a critic's. The others subtract the mean of
    the group, `leave_one_out` that of the other completions. `mean_std` also divides by the population standard
    deviation, `mean_sample_std` and `gdpo` by that of a sample.

    Raises:
        ValueError: a group of fewer than two of which the baseline is taken, or a reward that is not finite.
    """
    scaled_G = np.asarray(rewards_G, dtype=np.float64) * reward_scale
    if not np.isfinite(scaled_G).all():
        raise ValueError(f"rewards must be finite numbers, not {list(rewards_G)}")
    if kind in ("whiten", "gae"):
        return scaled_G
    if scaled_G.size < 2:
        raise ValueError(f"a group of {scaled_G.size} has no baseline: sampling.group_size must be 2 or more")
    if is_zero_gradient(rewards_G):
        return np.zeros_like(scaled_G)
    centred_G: Floats = scaled_G - scaled_G.mean()
    if kind == "leave_one_out":
        return centred_G * scaled_G.size / (scaled_G.size - 1)
    if kind in _FREEDOM:
        centred_G /= scaled_G.std(ddof=_FREEDOM[kind]) + std_floor
    return centred_G


def over_batch(
    advantages_N: Floats, loss_tokens_N: Floats, kind: AdvantageKind, std_floor: float = STD_FLOOR
) -> Floats:
    """The advantages of N completions of a batch after the part of `kind` that is over the whole batch.

    `whiten` and `mean_whiten` bring mean and variance over all loss tokens to 0 and 1, `gdpo` mean and standard
    deviation over the completions with loss tokens. Advantages that are all equal become 0.
    """
    if kind not in OVER_BATCH:
        return advantages_N
    there_N = loss_tokens_N > 0
    if not there_N.any() or is_zero_gradient(advantages_N[there_N]):
        return np.zeros_like(advantages_N)
    weights_N = there_N.astype(np.float64) if kind == "gdpo" else loss_tokens_N
    total = weights_N.sum()
    centred_N: Floats = np.where(there_N, advantages_N - weights_N @ advantages_N / total, 0.0)
    variance = float(weights_N @ centred_N**2 / (total - 1))
    centred_N /= sqrt(variance) + std_floor if kind == "gdpo" else sqrt(variance + WHITEN_FLOOR)
    return centred_N


def token_advantages(
    rewards: Sequence[Floats], kind: AdvantageKind, reward_scale: float = 1.0, std_floor: float = STD_FLOOR
) -> list[Floats]:
    """The advantage of each token of a group's answers whose rewards come with their tokens, before `over_batch`.

    Process supervision of GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3): all rewards of the group are normalized
    together, as `advantages` does, and a token gets the sum of those that come with it and later. Where each answer has
    a single reward, with its last token, these are the advantages of the answers.

    Args:
        rewards: rewards_T of each answer, NaN for a token without one.
    """
    paid = [~np.isnan(rewards_T) for rewards_T in rewards]
    flat = np.concatenate([rewards_T[paid_T] for rewards_T, paid_T in zip(rewards, paid, strict=True)])
    parts = np.split(advantages(flat, kind, reward_scale, std_floor), np.cumsum([paid_T.sum() for paid_T in paid])[:-1])
    found = []
    for paid_T, part in zip(paid, parts, strict=True):
        normalized_T = np.zeros(len(paid_T))
        normalized_T[paid_T] = part
        found.append(np.cumsum(normalized_T[::-1])[::-1])
    return found


def is_zero_gradient(rewards_G: Rewards) -> bool:
    """Whether all rewards are equal up to rounding, so that the group has no gradient."""
    lowest, highest = min(rewards_G), max(rewards_G)
    return bool(highest - lowest <= max(ROUNDING * max(abs(lowest), abs(highest)), CANCELLED))


def teacher_advantages(teacher_T: npt.ArrayLike, student_T: npt.ArrayLike, coefficient: float) -> Floats:
    """On-policy distillation: coefficient * (log pi_teacher - log pi_student) of each of T sampled tokens.

    Its mean over samples is -KL(pi_student || pi_teacher) of the next token, the reverse KL of MiniLLM (arXiv
    2306.08543) and GKD (arXiv 2306.13649), with a discount of 0: a token answers for itself. As in K. Lu, "On-Policy
    Distillation" (Thinking Machines, 2025), pi_student is the engine when it sampled, and the importance weight of the
    loss corrects for what the learner has changed since. 0 where the engine's log-probability is not finite.
    """
    student_T = np.asarray(student_T, dtype=np.float64)
    is_known_T = np.isfinite(student_T)
    return coefficient * np.where(is_known_T, np.asarray(teacher_T, np.float64) - np.where(is_known_T, student_T, 0), 0)


def overlong_penalty(num_tokens: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4), to be added to the reward before the advantage.

    0 up to `max_tokens - buffer` tokens, then a linear fall to -1 at `max_tokens`. A buffer of 0 turns it off.
    """
    if buffer == 0:
        return 0.0
    return -min(max(num_tokens - (max_tokens - buffer), 0) / buffer, 1.0)
