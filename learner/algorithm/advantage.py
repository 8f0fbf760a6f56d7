"""Advantages from the rewards of a group. Pure numpy, in fp64.

Shape letter: G completions of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
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

Rewards = Sequence[float] | npt.NDArray[np.float64]


def advantages(rewards_G: Rewards, kind: AdvantageKind, reward_scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Reward minus the mean of its group; with `mean_std` also divided by the group's (population) standard deviation.

    All 0 if the rewards are equal up to rounding.
    `mean` is the advantage of Dr. GRPO (arXiv 2503.20783), `mean_std` of GRPO (arXiv 2402.03300).

    Raises:
        ValueError: a group of fewer than two, or a reward that is not finite.
    """
    scaled_G = np.asarray(rewards_G, dtype=np.float64) * reward_scale
    if scaled_G.size < 2:
        raise ValueError(f"a group of {scaled_G.size} has no baseline: sampling.group_size must be 2 or more")
    if not np.isfinite(scaled_G).all():
        raise ValueError(f"rewards must be finite numbers, not {list(rewards_G)}")
    if is_zero_gradient(rewards_G):
        return np.zeros_like(scaled_G)
    spread = scaled_G.std() + STD_FLOOR if kind == "mean_std" else 1.0
    advantages_G: npt.NDArray[np.float64] = (scaled_G - scaled_G.mean()) / spread
    return advantages_G


def is_zero_gradient(rewards_G: Rewards) -> bool:
    """Whether all rewards are equal up to rounding, so that the group has no gradient."""
    lowest, highest = min(rewards_G), max(rewards_G)
    return bool(highest - lowest <= max(ROUNDING * max(abs(lowest), abs(highest)), CANCELLED))


def overlong_penalty(num_tokens: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4), to be added to the reward before the advantage.

    0 up to `max_tokens - buffer` tokens, then a linear fall to -1 at `max_tokens`. A buffer of 0 turns it off.
    """
    if buffer == 0:
        return 0.0
    return -min(max(num_tokens - (max_tokens - buffer), 0) / buffer, 1.0)
