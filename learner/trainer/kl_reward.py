"""The divergence from the reference as a part of the reward of each token (L. Ouyang et al., arXiv 2203.02155).

Pure numpy, in fp64. Shape letters: T tokens of one packed row, where the tokens of an answer are next to each other; A
answers of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from olmorl.learner.algorithm.advantage import WHITEN_FLOOR
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.packing import RowArrays

HORIZON: Final = 10_000
"""Answers over which an adaptive weight can change by `LARGEST_ERROR` of its size, as in the paper of `next_beta`."""
LARGEST_ERROR: Final = 0.2

Floats = npt.NDArray[np.float64]
SumOfRanks = Callable[[Sequence[float]], Sequence[float]]


def with_kl_reward(
    rows: Sequence[RowArrays], kl: Sequence[Floats], beta: float, switches: Switches, sum_of_ranks: SumOfRanks
) -> tuple[list[RowArrays], float]:
    """The rows of a step with the weighted divergence in the advantages of their tokens, and the next weight.

    A token answers for the divergence of the later tokens of its answer as well, so its advantage loses `beta` times
    the sum from it on. All ranks call this together.

    Args:
        kl: `kl_T` of each row, in nats; 0 where the loss mask is False.
        beta: the present weight.
        sum_of_ranks: adds numbers up over all ranks.
    """
    pairs = list(zip(rows, kl, strict=True))
    made = [_less(row, beta * kl_to_go(kl_T, row.sequence_ids_T)) for row, kl_T in pairs]
    if switches.whitens_tokens:
        made = _whitened(made, sum_of_ranks)
    if switches.kl_target is None:
        return made, beta
    means = np.concatenate([_answer_means(row, kl_T) for row, kl_T in pairs])
    total, answers = sum_of_ranks([means.sum(), means.size])
    return made, next_beta(beta, total / max(answers, 1), switches.kl_target, answers)


def kl_to_go(kl_T: Floats, sequence_ids_T: npt.NDArray[np.integer]) -> Floats:
    """For each token the sum of `kl_T` over it and the later tokens of its answer."""
    later_T = np.cumsum(kl_T[::-1])[::-1]
    ends_A = np.flatnonzero(np.diff(sequence_ids_T, append=sequence_ids_T[-1] + 1)) + 1
    after_A = np.append(later_T, 0.0)[ends_A]
    to_go_T: Floats = later_T - np.repeat(after_A, np.diff(ends_A, prepend=0))
    return to_go_T


def next_beta(beta: float, kl: float, target: float, answers: float) -> float:
    """The weight after a batch of `answers` with the mean divergence `kl` (D. Ziegler et al., arXiv 1909.08593)."""
    error = min(max(kl / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return beta * (1 + error * answers / HORIZON)


def _less(row: RowArrays, kl_reward_T: Floats) -> RowArrays:
    return row._replace(advantages_T=(row.advantages_T - kl_reward_T).astype(np.float32))


def _answer_means(row: RowArrays, kl_T: Floats) -> Floats:
    """The mean divergence of each answer with a loss token."""
    ids = row.sequence_ids_T[row.loss_mask_T]
    tokens_A, sums_A = np.bincount(ids), np.bincount(ids, kl_T[row.loss_mask_T])
    means_A: Floats = sums_A[tokens_A > 0] / tokens_A[tokens_A > 0]
    return means_A


def _whitened(rows: Sequence[RowArrays], sum_of_ranks: SumOfRanks) -> list[RowArrays]:
    """The rows with mean 0 and variance 1 of the advantages over the loss tokens of all ranks."""
    values = np.concatenate([row.advantages_T[row.loss_mask_T] for row in rows], dtype=np.float64)
    tokens, total = sum_of_ranks([values.size, values.sum()])
    mean = total / max(tokens, 1)
    (squares,) = sum_of_ranks([((values - mean) ** 2).sum()])
    spread = np.sqrt(squares / max(tokens - 1, 1) + WHITEN_FLOOR)
    return [row._replace(advantages_T=((row.advantages_T - mean) / spread).astype(np.float32)) for row in rows]
