"""Advantages that differ from token to token: a KL reward (arXiv 2203.02155), or a critic's estimates (GAE).

Pure numpy, in fp64. Shape letters: T tokens of one packed row, where the tokens of an answer are next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from olmorl.learner.algorithm.advantage import WHITEN_FLOOR
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.packing import RowArrays

HORIZON: Final = 10_000
"""Answers over which an adaptive weight can change by `LARGEST_ERROR` of its size, as in the paper of `next_beta`."""
LARGEST_ERROR: Final = 0.2

Floats = npt.NDArray[np.float64]
SumOfRanks = Callable[[Sequence[float]], Sequence[float]]


class Credit(NamedTuple):
    """The rows of a step as they are trained."""

    rows: list[RowArrays]
    """With the advantage of each token."""
    returns: list[Floats]
    """returns_T of each row, which the critic learns; empty without a critic."""
    beta: float
    """The weight of the KL reward in the next step."""


class ScoredRow(NamedTuple):
    """A row, and what is known of it before the first update of its step; None: not needed."""

    row: RowArrays
    old_T: Tensor | None = None
    """Log-probabilities of the learner at the start of the step."""
    reference_T: Tensor | None = None
    """Log-probabilities of the reference policy."""
    values_T: Floats | None = None
    """The critic's, at the start of the step."""
    returns_T: Floats | None = None
    """What the critic learns."""
    anchor_T: Tensor | None = None
    """Log-probabilities of the learner `anchor_age` steps ago."""
    anchor_age: int = 0


def credit(
    rows: Sequence[RowArrays],
    kl: Sequence[Floats],
    values: Sequence[Floats],
    beta: float,
    switches: Switches,
    sum_of_ranks: SumOfRanks,
) -> Credit:
    """The advantage of each token. All ranks call this together.

    Without a critic a token's advantage loses the KL reward of it and of the later tokens of its answer, for which it
    answers as well. With one, the rows hold rewards in place of advantages.

    Args:
        kl: `kl_T` of each row, the divergence from the reference in nats; empty without a KL reward.
        values: `values_T` of each row; empty without a critic.
        beta: the present weight of the KL reward.
        sum_of_ranks: adds numbers up over all ranks.
    """
    costs = [beta * np.where(row.loss_mask_T, kl_T, 0.0) for row, kl_T in zip(rows, kl, strict=True)] if kl else []
    returns: list[Floats] = []
    if values:
        costs = costs or [np.zeros(len(row.token_ids_T)) for row in rows]
        pairs = [
            gae(row, cost_T, values_T, switches.gamma, switches.lam)
            for row, cost_T, values_T in zip(rows, costs, values, strict=True)
        ]
        made = [_with(row, advantages_T) for row, (advantages_T, _) in zip(rows, pairs, strict=True)]
        returns = [returns_T for _, returns_T in pairs]
    else:
        made = [
            _with(row, row.advantages_T - to_go(cost_T, row.sequence_ids_T))
            for row, cost_T in zip(rows, costs, strict=True)
        ]
    if switches.whitens_tokens:
        made = _whitened(made, sum_of_ranks)
    if switches.kl_target is not None:
        means = np.concatenate([_answer_means(row, kl_T) for row, kl_T in zip(rows, kl, strict=True)])
        total, answers = sum_of_ranks([means.sum(), means.size])
        beta = next_beta(beta, total / max(answers, 1), switches.kl_target, answers)
    return Credit(made, returns, beta)


def gae(row: RowArrays, cost_T: Floats, values_T: Floats, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """advantages_T and returns_T by generalized advantage estimation (J. Schulman et al., arXiv 1506.02438).

    An answer is its loss tokens. `advantages_T` of the row is the sum of the rewards that come with a token and later,
    so the whole reward comes with the last token where it is the same for all. Entries of other tokens are 0.
    """
    advantages_T, returns_T = np.zeros(len(values_T)), np.zeros(len(values_T))
    after, next_value, later, next_id = 0.0, 0.0, 0.0, -1
    for token in np.flatnonzero(row.loss_mask_T)[::-1]:
        if row.sequence_ids_T[token] != next_id:
            after, next_value, later, next_id = 0.0, 0.0, 0.0, row.sequence_ids_T[token]
        reward = row.advantages_T[token] - later - cost_T[token]
        later = row.advantages_T[token]
        after = reward + gamma * next_value - values_T[token] + gamma * lam * after
        next_value = values_T[token]
        advantages_T[token], returns_T[token] = after, after + next_value
    return advantages_T, returns_T


def to_go(cost_T: Floats, sequence_ids_T: npt.NDArray[np.integer]) -> Floats:
    """For each token the sum of `cost_T` over it and the later tokens of its answer."""
    later_T = np.cumsum(cost_T[::-1])[::-1]
    ends = np.flatnonzero(np.diff(sequence_ids_T, append=sequence_ids_T[-1] + 1)) + 1
    after = np.append(later_T, 0.0)[ends]
    to_go_T: Floats = later_T - np.repeat(after, np.diff(ends, prepend=0))
    return to_go_T


def next_beta(beta: float, kl: float, target: float, answers: float) -> float:
    """The weight after a batch of `answers` with the mean divergence `kl` (D. Ziegler et al., arXiv 1909.08593)."""
    error = min(max(kl / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return beta * (1 + error * answers / HORIZON)


def _with(row: RowArrays, advantages_T: Floats) -> RowArrays:
    return row._replace(advantages_T=advantages_T.astype(np.float32))


def _answer_means(row: RowArrays, kl_T: Floats) -> Floats:
    """The mean divergence of each answer with a loss token."""
    ids = row.sequence_ids_T[row.loss_mask_T]
    tokens, sums = np.bincount(ids), np.bincount(ids, kl_T[row.loss_mask_T])
    means: Floats = sums[tokens > 0] / tokens[tokens > 0]
    return means


def _whitened(rows: Sequence[RowArrays], sum_of_ranks: SumOfRanks) -> list[RowArrays]:
    """The rows with mean 0 and variance 1 of the advantages over the loss tokens of all ranks."""
    values = np.concatenate([row.advantages_T[row.loss_mask_T] for row in rows], dtype=np.float64)
    tokens, total = sum_of_ranks([values.size, values.sum()])
    mean = total / max(tokens, 1)
    (squares,) = sum_of_ranks([((values - mean) ** 2).sum()])
    spread = np.sqrt(squares / max(tokens - 1, 1) + WHITEN_FLOOR)
    return [_with(row, (row.advantages_T - mean) / spread) for row in rows]
