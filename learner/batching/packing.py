"""Divides groups into minibatches, packs samples into rows, deals rows to ranks. Deterministic; drops nothing.

    groups --stride--> minibatches --group by group, or sample by sample--> rows --dealt by cost--> ranks

Shape letter: T tokens of one row. Entry t of every array belongs to token t of the row, the one that is *predicted*:
its log-probability comes from the hidden state at t - 1. The first token of a sample is a prompt token, which is never
predicted, so nothing is predicted across the border of two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain
from math import ceil, inf
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from olmorl.messages import Floats, Sample, Shard, TokenIds

Row = tuple[Sample, ...]

PARITY_TOKENS: Final = 50_000
"""Length at which causal attention costs as much as the matrix products: 12 hidden sizes of a 7B to 32B model."""

MORE_ROWS: Final = 0.02
"""Share of rows that is added when groups did not find room. It doubles each time."""
COST_LIMITS: Final = (1.0, 1.02, inf)
"""Most cost of a row, in equal shares of what is left. The next one is tried when groups did not find room."""
TRIED_GROUPS: Final = 2
"""Groups that are split for the last room of a row."""

MIN_ROW_TOKENS: Final = 2
"""An empty row still runs a forward; two tokens give it one (masked) prediction."""


class RowArrays(NamedTuple):
    """One row as the objective and the model see it."""

    token_ids_T: TokenIds
    position_ids_T: TokenIds
    """Restart with every sample and with the padding: at 0, or after the prompt that the sample shares."""
    sequence_ids_T: TokenIds
    """Number of the sample in its row: attention stays inside, and on the prompt. A shared prompt has the number of the
    first sample that shares it. -1 for padding."""
    loss_mask_T: npt.NDArray[np.bool_]
    """True for the completion tokens that the sample's own mask keeps."""
    behaviour_logprobs_T: Floats
    """0 where there is no completion token, like the next fields."""
    advantages_T: Floats
    lags_T: TokenIds
    reference_logprobs_T: Floats
    """Of a served reference; 0 without one."""


def pack(
    groups: Sequence[Sequence[Sample]],
    *,
    step: int,
    num_ranks: int,
    num_minibatches: int,
    row_tokens: int,
    checkpoint: bool = False,
    sequence_parallel: int = 1,
    share_prompts: bool = False,
) -> tuple[Shard, ...]:
    """One shard for each rank, from the groups of a step. Each `sequence_parallel` ranks in turn get equal shards.

    With `share_prompts`, a row holds the prompt of a group once, so the answers of a group stay together where that
    costs less than it saves.

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
    batches = [groups[first::stride] for first in range(stride)]
    num_shares = num_ranks // sequence_parallel
    dealt = [_deal(_rows(batch, row_tokens, num_shares, share_prompts), num_shares, share_prompts) for batch in batches]
    counts = [[np.count_nonzero(sample.loss_mask) for sample in chain.from_iterable(batch)] for batch in batches]
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


def row_arrays(row: Sequence[Sample], pad_to: int = 0, pad_token_id: int = 0, share_prompts: bool = False) -> RowArrays:
    """The row's samples one after the other, padded to `pad_to` tokens and at least to 2.

    With `share_prompts`, neighbours of one draw have their prompt once, before the first answer.
    """
    blocks = prompt_blocks(row, share_prompts)
    total = sum(map(_block_length, blocks))
    arrays = _padding(max(total, pad_to, MIN_ROW_TOKENS), total, pad_token_id)
    start = number = 0
    for block in blocks:
        prompt = len(block[0].prompt_ids)
        arrays.token_ids_T[start : start + prompt] = block[0].prompt_ids
        arrays.position_ids_T[start : start + prompt] = np.arange(prompt)
        arrays.sequence_ids_T[start : start + prompt] = number
        start += prompt
        for sample in block:
            length = len(sample.completion_ids)
            part = slice(start, start + length)
            arrays.token_ids_T[part] = sample.completion_ids
            arrays.position_ids_T[part] = np.arange(prompt, prompt + length)
            arrays.sequence_ids_T[part] = number
            arrays.loss_mask_T[part] = sample.loss_mask
            arrays.behaviour_logprobs_T[part] = sample.behaviour_logprobs
            arrays.advantages_T[part] = sample.advantage
            if sample.token_advantages is not UNSET:
                arrays.advantages_T[part] += sample.token_advantages
            arrays.lags_T[part] = sample.lags
            if sample.reference_logprobs is not UNSET:
                arrays.reference_logprobs_T[part] = sample.reference_logprobs
            start, number = start + length, number + 1
    return arrays


def prompt_blocks(row: Sequence[Sample], share_prompts: bool) -> list[list[Sample]]:
    """The samples of a row by the prompts that it holds: neighbours of one draw share theirs, or each has its own."""
    blocks: list[list[Sample]] = []
    for sample in row:
        if share_prompts and blocks and _same_prompt(blocks[-1][0], sample):
            blocks[-1].append(sample)
        else:
            blocks.append([sample])
    return blocks


def _same_prompt(one: Sample, other: Sample) -> bool:
    if one.prompt_ids is other.prompt_ids:
        return one.draw_id == other.draw_id
    return one.draw_id == other.draw_id and np.array_equal(one.prompt_ids, other.prompt_ids)


def _block_length(block: Sequence[Sample]) -> int:
    return len(block[0].prompt_ids) + sum(len(sample.completion_ids) for sample in block)


def row_cost(row: Sequence[Sample], share_prompts: bool = False) -> float:
    """Relative time of a row: its tokens, and the attention of each sample to itself and its prompt."""
    if not share_prompts:
        return sum(_cost(_length(sample)) for sample in row)
    cost = 0.0
    for block in prompt_blocks(row, share_prompts):
        prompt = len(block[0].prompt_ids)
        cost += _cost(prompt) + sum(_answer_cost(prompt, len(sample.completion_ids)) for sample in block)
    return cost


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)


def _cost(length: int) -> float:
    return length + length * length / PARITY_TOKENS


def _answer_cost(prompt: int, length: int) -> float:
    """Returns the cost of an answer after a prompt that has been computed."""
    return length + length * (length + 2 * prompt) / PARITY_TOKENS


def _padding(size: int, start: int, pad_token_id: int) -> RowArrays:
    return RowArrays(
        token_ids_T=np.full(size, pad_token_id, np.int32),
        position_ids_T=np.arange(-start, size - start, dtype=np.int32),
        sequence_ids_T=np.full(size, -1, np.int32),
        loss_mask_T=np.zeros(size, np.bool_),
        behaviour_logprobs_T=np.zeros(size, np.float32),
        advantages_T=np.zeros(size, np.float32),
        lags_T=np.zeros(size, np.int32),
        reference_logprobs_T=np.zeros(size, np.float32),
    )


def _rows(groups: Sequence[Sequence[Sample]], row_tokens: int, num_ranks: int, share_prompts: bool) -> list[Row]:
    """As few rows as possible, of similar cost for the ranks that run side by side."""
    if not share_prompts:
        return _spread_rows(list(chain.from_iterable(groups)), row_tokens, num_ranks)
    # An environment may write another prompt for each episode of a group.
    of_one_prompt = chain.from_iterable(prompt_blocks(group, share_prompts) for group in groups)
    blocks = sorted(map(_block, of_one_prompt), key=lambda block: block.lengths[0])
    large = sum(2 * (block.prompt + length) > row_tokens for block in blocks for length in block.lengths)
    num_rows = _round_up(max(large, sum(block.tokens for block in blocks) / row_tokens), num_ranks)
    growth, most = MORE_ROWS, sum(map(len, groups))
    while num_rows < most:
        for limit in COST_LIMITS if num_ranks > 1 else (inf,):
            if rows := _filled_rows(blocks, row_tokens, num_rows, num_ranks, limit):
                return rows
        num_rows = _round_up(num_rows * (1 + growth), num_ranks)
        growth *= 2
    rows = _spread_rows(list(chain.from_iterable(groups)), row_tokens, num_ranks)
    return [tuple(sorted(row, key=attrgetter("draw_id"))) for row in rows]


def _round_up(number: float, step: int) -> int:
    return ceil(number / step) * step


class _Block(NamedTuple):
    """Answers of one group, longest first, with their prompt once."""

    samples: Sequence[Sample]
    lengths: Sequence[int]
    """Without the prompt, as the next field."""
    costs: Sequence[float]
    prompt: int
    prompt_cost: float
    tokens: int
    """With the prompt, as the next field."""
    cost: float


def _block(group: Sequence[Sample]) -> _Block:
    samples = sorted(group, key=_length, reverse=True)
    prompt = len(samples[0].prompt_ids)
    lengths = [len(sample.completion_ids) for sample in samples]
    costs = [_answer_cost(prompt, length) for length in lengths]
    prompt_cost = _cost(prompt)
    return _Block(samples, lengths, costs, prompt, prompt_cost, prompt + sum(lengths), prompt_cost + sum(costs))


def _split(block: _Block, room: int, aim: float, at_least_one: bool) -> tuple[_Block | None, _Block | None]:
    """The answers that fit into `room` tokens and bring the cost close to `aim`, and the others."""
    room, aim = room - block.prompt, aim - block.prompt_cost
    taken: list[int] = []
    left: list[int] = []
    last = len(block.samples) - 1
    for place, (length, cost) in enumerate(zip(block.lengths, block.costs, strict=True)):
        # The shortest one may go beyond, if the row is then closer to the aim.
        if length <= room and (cost <= aim or (place == last and cost <= 2 * aim)):
            taken.append(place)
            room, aim = room - length, aim - cost
        else:
            left.append(place)
    if at_least_one and not taken:
        taken.append(left.pop(0))
    return (_part(block, taken), _part(block, left)) if taken and left else (block, None) if taken else (None, block)


def _part(block: _Block, places: Sequence[int]) -> _Block:
    samples = [block.samples[place] for place in places]
    lengths = [block.lengths[place] for place in places]
    costs = [block.costs[place] for place in places]
    tokens, cost = block.prompt + sum(lengths), block.prompt_cost + sum(costs)
    return _Block(samples, lengths, costs, block.prompt, block.prompt_cost, tokens, cost)


def _filled_rows(
    blocks: Sequence[_Block], row_tokens: int, num_rows: int, num_ranks: int, limit: float
) -> list[Row] | None:
    """Fill one row after the other with groups, the last one of `blocks` first. None if some do not find room.

    A row aims at an equal share of the cost that is left, or at that of the longest answer that runs beside it. A group
    is split at the border of a row if both parts cost more than another copy of the prompt, or to save a row.
    """
    waiting = list(blocks)
    tokens, cost = sum(block.tokens for block in waiting), sum(block.cost for block in waiting)
    rows: list[Row] = []
    dearest = 0.0
    for rows_left in range(num_rows, 0, -1):
        if rows_left % num_ranks == 0:
            # All but the parts of the last row are in order.
            nearest = waiting[-TRIED_GROUPS - 1 :]
            dearest = max((block.prompt_cost + block.costs[0] for block in nearest), default=0.0)
        aim = max(limit * cost / rows_left, dearest) if rows_left > 1 else inf
        room = row_tokens
        row: list[Sample] = []
        aside: list[_Block] = []
        while waiting and len(aside) < TRIED_GROUPS:
            whole = waiting.pop()
            block: _Block | None = whole
            rest: _Block | None = None
            if whole.tokens > room or whole.cost > aim:
                block, rest = _split(whole, room, aim, at_least_one=not row)
            if block and rest and tokens <= (rows_left - 1) * row_tokens:
                if whole.tokens <= room and sum(rest.costs) <= whole.prompt_cost:
                    block, rest = whole, None
                elif row and sum(block.costs) <= whole.prompt_cost:
                    block, rest = None, whole
            if rest:
                aside.append(rest)
            if block:
                row += block.samples
                room, aim = room - block.tokens, aim - block.cost
                copied = rest is not None
                tokens -= block.tokens - copied * block.prompt
                cost -= block.cost - copied * block.prompt_cost
        waiting += reversed(aside)
        rows.append(tuple(row))
    return None if waiting else rows


def _spread_rows(samples: Sequence[Sample], row_tokens: int, num_ranks: int) -> list[Row]:
    """Count the rows with first fit decreasing, then spread the samples evenly over the rows that ranks run."""
    ordered = sorted(samples, key=_length, reverse=True)
    lengths = [_length(sample) for sample in ordered]
    tight = _first_fit(lengths, row_tokens)
    num_rows = _round_up(1 + max(tight), num_ranks)
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


def _deal(rows: Sequence[Row], num_ranks: int, share_prompts: bool) -> list[tuple[Row, ...]]:
    """Ranks run in lock-step, so give them rows of similar cost at a time, the dearest to the least loaded rank."""
    costs = [row_cost(row, share_prompts) for row in rows]
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
