"""Divides groups into minibatches, packs samples into rows, deals rows to ranks. Deterministic; drops nothing.

    groups --stride--> minibatches --first fit decreasing--> rows --dealt by cost--> ranks, or groups of ranks

Shape letter: T tokens of one row. Entry t of every array belongs to token t of the row, the one that is *predicted*:
its log-probability comes from the hidden state at t - 1. The first token of a sample is a prompt token, which is never
predicted, so nothing is predicted across the border of two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from olmorl.messages import Floats, Sample, Shard, TokenIds

Row = tuple[Sample, ...]

PARITY_TOKENS: Final = 50_000
"""Length at which causal attention costs as much as the matrix products: 12 hidden sizes of a 7B to 32B model."""

MIN_ROW_TOKENS: Final = 2
"""An empty row still runs a forward; two tokens give it one (masked) prediction."""


class RowArrays(NamedTuple):
    """One row as the objective and the model see it."""

    token_ids_T: TokenIds
    position_ids_T: TokenIds
    """Restart at 0 with every sample, and with the padding."""
    sequence_ids_T: TokenIds
    """Index of the sample in its row, its prompt included: attention stays inside. -1 for padding."""
    loss_mask_T: npt.NDArray[np.bool_]
    """True for the completion tokens that the sample's own mask keeps."""
    behaviour_logprobs_T: Floats
    """0 where there is no completion token, like the next two fields."""
    advantages_T: Floats
    lags_T: TokenIds


def pack(
    groups: Sequence[Sequence[Sample]],
    *,
    step: int,
    num_ranks: int,
    num_minibatches: int,
    row_tokens: int,
    checkpoint: bool = False,
    sequence_parallel: int = 1,
) -> tuple[Shard, ...]:
    """One shard for each rank, from the groups of a step. Each `sequence_parallel` ranks in turn get equal shards.

    Minibatches take the groups in turn, so their sizes differ by at most one group and each sees early and late (short
    and long) groups alike. With fewer groups than minibatches there are as many minibatches as groups. A sample of more
    than `row_tokens` gets its own row.

    Raises:
        ValueError: no groups, or a sample without a prompt token (its first token could not be predicted).
    """
    if not groups:
        raise ValueError("a step needs at least one group")
    if any(len(sample.prompt_ids) == 0 for sample in chain.from_iterable(groups)):
        raise ValueError("every sample needs a prompt of at least one token")
    stride = min(num_minibatches, len(groups))
    batches = [list(chain.from_iterable(groups[first::stride])) for first in range(stride)]
    num_shares = num_ranks // sequence_parallel
    dealt = [_deal(_rows(batch, row_tokens, num_shares), num_shares) for batch in batches]
    counts = [[np.count_nonzero(sample.loss_mask) for sample in batch] for batch in batches]
    return tuple(
        Shard(
            step=step,
            minibatches=tuple(minibatch[rank // sequence_parallel] for minibatch in dealt),
            loss_tokens=tuple(float(sum(tokens)) for tokens in counts),
            num_sequences=tuple(sum(map(bool, tokens)) for tokens in counts),
            checkpoint=checkpoint,
        )
        for rank in range(num_ranks)
    )


def row_arrays(row: Sequence[Sample], pad_to: int = 0, pad_token_id: int = 0) -> RowArrays:
    """The row's samples one after the other, padded to `pad_to` tokens and at least to 2."""
    lengths = [_length(sample) for sample in row]
    total = sum(lengths)
    arrays = _padding(max(total, pad_to, MIN_ROW_TOKENS), total, pad_token_id)
    start = 0
    for index, (sample, length) in enumerate(zip(row, lengths, strict=True)):
        first, end = start + len(sample.prompt_ids), start + length
        arrays.token_ids_T[start:first] = sample.prompt_ids
        arrays.token_ids_T[first:end] = sample.completion_ids
        arrays.position_ids_T[start:end] = np.arange(length)
        arrays.sequence_ids_T[start:end] = index
        arrays.loss_mask_T[first:end] = sample.loss_mask
        arrays.behaviour_logprobs_T[first:end] = sample.behaviour_logprobs
        arrays.advantages_T[first:end] = sample.advantage
        arrays.lags_T[first:end] = sample.lags
        start = end
    return arrays


def row_cost(row: Sequence[Sample]) -> float:
    """Relative time of a row: its tokens, and the attention of each sample to itself."""
    return sum(_cost(_length(sample)) for sample in row)


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)


def _cost(length: int) -> float:
    return length + length * length / PARITY_TOKENS


def _padding(size: int, start: int, pad_token_id: int) -> RowArrays:
    return RowArrays(
        token_ids_T=np.full(size, pad_token_id, np.int32),
        position_ids_T=np.arange(-start, size - start, dtype=np.int32),
        sequence_ids_T=np.full(size, -1, np.int32),
        loss_mask_T=np.zeros(size, np.bool_),
        behaviour_logprobs_T=np.zeros(size, np.float32),
        advantages_T=np.zeros(size, np.float32),
        lags_T=np.zeros(size, np.int32),
    )


def _rows(samples: Sequence[Sample], row_tokens: int, num_ranks: int) -> list[Row]:
    """Count the rows with first fit decreasing, then spread the samples evenly over the rows that ranks run."""
    ordered = sorted(samples, key=_length, reverse=True)
    lengths = [_length(sample) for sample in ordered]
    tight = _first_fit(lengths, row_tokens)
    num_rows = -(-(1 + max(tight)) // num_ranks) * num_ranks
    rows: list[list[Sample]] = [[] for _ in range(num_rows)]
    for sample, row in zip(ordered, _spread(lengths, row_tokens, num_rows) or tight, strict=True):
        rows[row].append(sample)
    return [tuple(row) for row in rows]


def _first_fit(lengths: Sequence[int], row_tokens: int) -> list[int]:
    """The row of each sample: the first one with room. `lengths` decrease."""
    # A tree of maxima over the rows, so that the first row with room is found in a few steps.
    size = 1 << (len(lengths) - 1).bit_length()
    room = [row_tokens] * (2 * size)
    rows = []
    for length in lengths:
        needed, node = min(length, row_tokens), 1
        while node < size:
            node = 2 * node + (room[2 * node] < needed)
        rows.append(node - size)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


def _spread(lengths: Sequence[int], row_tokens: int, num_rows: int) -> list[int] | None:
    """The row of each sample: the cheapest one with room. None if they do not fit into `num_rows` rows.

    `lengths` decrease, so a row without room for one sample has room again only for shorter ones.
    """
    room = [row_tokens] * num_rows
    cheapest = [(0.0, row) for row in range(num_rows)]
    roomiest: list[tuple[int, float, int]] = []
    rows = []
    for length in lengths:
        while roomiest and -roomiest[0][0] >= length:
            heappush(cheapest, heappop(roomiest)[1:])
        # An empty row takes a sample of any length.
        while cheapest and room[cheapest[0][1]] < length and cheapest[0][0]:
            cost, row = heappop(cheapest)
            heappush(roomiest, (-room[row], cost, row))
        if not cheapest:
            return None
        cost, row = cheapest[0]
        rows.append(row)
        room[row] -= length
        heapreplace(cheapest, (cost + _cost(length), row))
    return rows


def _deal(rows: Sequence[Row], num_ranks: int) -> list[tuple[Row, ...]]:
    """Ranks run in lock-step, so give them rows of similar cost at a time, the dearest to the least loaded rank."""
    costs = [row_cost(row) for row in rows]
    ordered = sorted(range(len(rows)), key=costs.__getitem__, reverse=True)
    shares: list[list[Row]] = [[] for _ in range(num_ranks)]
    load = [0.0] * num_ranks
    for start in range(0, len(ordered), num_ranks):
        ranks = sorted(range(num_ranks), key=load.__getitem__)
        for place, rank in enumerate(ranks, start):
            row = ordered[place] if place < len(ordered) else None
            shares[rank].append(() if row is None else rows[row])
            load[rank] += 0.0 if row is None else costs[row]
    return [tuple(share) for share in shares]
