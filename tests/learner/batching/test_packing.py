"""Packing drops nothing, keeps groups whole, bounds rows, balances ranks, and aligns tokens with their predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.config import Objective
from olmorl.learner.algorithm.objective import LossInputs, policy_loss
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import RowArrays, pack, prompt_blocks, row_arrays, row_cost
from olmorl.messages import Sample, Shard

IDENTITY = count()


def sample(draw_id: int, prompt: int, completion: int, masked: int = 0) -> Sample:
    """A sample whose first prompt token is its identity; the first `masked` completion tokens are masked."""
    number = next(IDENTITY)
    return Sample(
        draw_id=draw_id,
        prompt_ids=np.array([number, *range(1, prompt)], np.int32),
        completion_ids=np.arange(100, 100 + completion, dtype=np.int32),
        behaviour_logprobs=-np.arange(1, completion + 1, dtype=np.float32),
        loss_mask=np.arange(completion) >= masked,
        lags=np.full(completion, draw_id % 3, np.int32),
        advantage=draw_id + 0.5,
    )


def identity(one: Sample) -> int:
    return int(one.prompt_ids[0])


def length(one: Sample) -> int:
    return len(one.prompt_ids) + len(one.completion_ids)


@dataclass
class Problem:
    groups: list[list[Sample]]
    num_ranks: int
    num_minibatches: int
    row_tokens: int
    sequence_parallel: int = 1
    share_prompts: bool = False

    def solve(self) -> tuple[Shard, ...]:
        return pack(
            self.groups,
            step=1,
            num_ranks=self.num_ranks,
            num_minibatches=self.num_minibatches,
            row_tokens=self.row_tokens,
            sequence_parallel=self.sequence_parallel,
            share_prompts=self.share_prompts,
        )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    shapes = st.tuples(st.integers(1, 12), st.integers(0, 40), st.integers(0, 45))
    groups = draw(st.lists(st.lists(shapes, min_size=1, max_size=6), min_size=1, max_size=9))
    return Problem(
        groups=[[sample(d, p, c, masked=m) for p, c, m in group] for d, group in enumerate(groups)],
        num_ranks=draw(st.integers(1, 5)),
        num_minibatches=draw(st.integers(1, 11)),
        row_tokens=draw(st.integers(1, 90)),
    )


def minibatches(shards: tuple[Shard, ...]) -> list[list[tuple[Sample, ...]]]:
    """All rows of each minibatch, over all ranks."""
    return [[row for rows in parts for row in rows] for parts in zip(*(s.minibatches for s in shards), strict=True)]


@settings(deadline=None)
@given(problems())
def test_every_sample_is_in_exactly_one_row(problem: Problem) -> None:
    packed = Counter(identity(one) for rows in minibatches(problem.solve()) for row in rows for one in row)
    assert packed == Counter(identity(one) for group in problem.groups for one in group)


@settings(deadline=None)
@given(problems())
def test_minibatches_hold_whole_groups_and_differ_by_at_most_one(problem: Problem) -> None:
    draws = [{one.draw_id for row in rows for one in row} for rows in minibatches(problem.solve())]
    assert len(draws) == min(problem.num_minibatches, len(problem.groups))
    assert sum(map(len, draws)) == len(problem.groups) == len(set().union(*draws))
    assert max(map(len, draws)) - min(map(len, draws)) <= 1


@settings(deadline=None)
@given(problems())
def test_rows_are_bounded_and_every_rank_has_as_many(problem: Problem) -> None:
    shards = problem.solve()
    assert len(shards) == problem.num_ranks
    for parts in zip(*(shard.minibatches for shard in shards), strict=True):
        assert len({len(rows) for rows in parts}) == 1
    for rows in minibatches(shards):
        assert all(len(row) <= 1 or sum(map(length, row)) <= problem.row_tokens for row in rows)


@settings(deadline=None)
@given(problems())
def test_normalisers_are_those_of_the_whole_minibatch_on_every_rank(problem: Problem) -> None:
    shards = problem.solve()
    for index, rows in enumerate(minibatches(shards)):
        masks = [one.loss_mask for row in rows for one in row]
        assert {shard.loss_tokens[index] for shard in shards} == {float(sum(mask.sum() for mask in masks))}
        assert {shard.num_sequences[index] for shard in shards} == {sum(1 for mask in masks if mask.any())}


@settings(deadline=None)
@given(problems())
def test_packing_is_deterministic(problem: Problem) -> None:
    first, second = (
        [[[identity(one) for one in row] for row in rows] for shard in shards for rows in shard.minibatches]
        for shards in (problem.solve(), problem.solve())
    )
    assert first == second


@settings(deadline=None)
@given(problems(), st.integers(1, 3))
def test_ranks_that_share_rows_get_the_rows_of_one(problem: Problem, size: int) -> None:
    """And with other ranks they share nothing."""

    def rows(shards: tuple[Shard, ...]) -> list[Any]:
        named = [
            [[[identity(one) for one in row] for row in minibatch] for minibatch in shard.minibatches]
            for shard in shards
        ]
        return [(rows, shard.loss_tokens, shard.num_sequences) for rows, shard in zip(named, shards, strict=True)]

    alone = rows(problem.solve())
    shared = rows(replace(problem, num_ranks=problem.num_ranks * size, sequence_parallel=size).solve())
    assert shared == [share for share in alone for _ in range(size)]


def test_a_sample_longer_than_a_row_gets_a_row_of_its_own() -> None:
    rows = minibatches(Problem([[sample(0, 2, 50), sample(0, 2, 3), sample(0, 2, 4)]], 1, 1, 20).solve())[0]
    assert sorted([length(one) for one in row] for row in rows) == [[6, 5], [52]]


def test_rows_are_as_few_as_first_fit_decreasing_makes_them() -> None:
    # 7 + 3, 6 + 4, 5 + 5 fill three rows of ten exactly.
    group = [sample(0, 1, n - 1) for n in (3, 4, 5, 5, 6, 7)]
    rows = minibatches(Problem([group], 1, 1, 10).solve())[0]
    assert [sum(map(length, row)) for row in rows] == [10, 10, 10]


def test_a_batch_that_fits_into_one_row_still_occupies_every_rank() -> None:
    shards = Problem([[sample(d, 2, 8) for _ in range(8)] for d in range(2)], 4, 1, 1000).solve()
    assert [[len(row) for row in shard.minibatches[0]] for shard in shards] == [[4]] * 4


def test_ranks_without_work_get_empty_rows() -> None:
    shards = Problem([[sample(0, 2, 8), sample(0, 2, 8)]], 3, 1, 10).solve()
    assert sorted(len(shard.minibatches[0][0]) for shard in shards) == [0, 1, 1]


def test_rows_that_cannot_be_spread_evenly_stay_as_first_fit_made_them() -> None:
    # Two rows of ten hold 5 + 5 and 4 + 3 + 3; one by one to the cheaper row, the last 3 would make an eleven.
    group = [sample(0, 1, n - 1) for n in (5, 5, 4, 3, 3)]
    rows = minibatches(Problem([group], 1, 1, 10).solve())[0]
    assert sorted([length(one) for one in row] for row in rows) == [[4, 3, 3], [5, 5]]


def test_a_sample_goes_past_the_cheapest_row_when_that_is_full() -> None:
    # Attention makes 40,000 tokens in one sample cost more than 49,000 in short ones; those leave no room for the last.
    group = [sample(0, 1, n - 1) for n in (40_000, *[9_000] * 5, 4_000, 4_000)]
    rows = minibatches(Problem([group], 1, 1, 50_000).solve())[0]
    assert [[length(one) for one in row] for row in rows] == [[40_000, 4_000], [9_000] * 5 + [4_000]]


def test_rows_of_like_cost_run_side_by_side() -> None:
    # Spread over four rows these make 12, 7, 7 and 4 + 4. Run as 12 with 8, then 7 with 7: 19 tokens of waiting for
    # the slower rank; as 12 with 7, then 7 with 8, it would be 20.
    group = [sample(0, 1, n - 1) for n in (12, 7, 7, 4, 4)]
    shards = Problem([group], 2, 1, 12).solve()
    assert [[sum(map(length, row)) for row in shard.minibatches[0]] for shard in shards] == [[12, 7], [8, 7]]


def test_the_dearer_row_goes_to_the_less_loaded_rank() -> None:
    group = [sample(0, 1, n - 1) for n in (100, 90, 80, 70)]
    shards = Problem([group], 2, 1, 100).solve()
    assert [[sum(map(length, row)) for row in shard.minibatches[0]] for shard in shards] == [[100, 70], [90, 80]]


def test_ranks_are_balanced_by_cost_and_in_lock_step() -> None:
    rng = np.random.default_rng(0)
    groups = [[sample(d, 20, int(rng.lognormal(5, 0.8))) for _ in range(8)] for d in range(32)]
    shards = Problem(groups, 8, 1, 2000).solve()
    costs = np.array([[row_cost(row) for row in shard.minibatches[0]] for shard in shards])
    assert costs.sum() / (costs.max(axis=0).sum() * 8) > 0.95
    assert costs.sum(axis=1).max() / costs.sum(axis=1).mean() < 1.05


def test_a_long_sample_costs_more_than_as_many_tokens_in_short_ones() -> None:
    assert row_cost([sample(0, 1, 29_999)]) > row_cost([sample(0, 1, 2_999) for _ in range(10)])


def test_minibatches_take_the_groups_in_turn() -> None:
    groups = [[sample(d, 1, 4), sample(d, 1, 4)] for d in range(7)]
    draws = [
        sorted({one.draw_id for row in rows for one in row}) for rows in minibatches(Problem(groups, 2, 3, 10).solve())
    ]
    assert draws == [[0, 3, 6], [1, 4], [2, 5]]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        Problem([], 1, 1, 10).solve()
    nameless = sample(0, 1, 3)
    without_prompt = Sample(
        draw_id=0,
        prompt_ids=np.array([], np.int32),
        completion_ids=nameless.completion_ids,
        behaviour_logprobs=nameless.behaviour_logprobs,
        loss_mask=nameless.loss_mask,
        lags=nameless.lags,
        advantage=1.0,
    )
    with pytest.raises(ValueError, match="prompt of at least one token"):
        Problem([[without_prompt]], 1, 1, 10).solve()


def test_arrays_of_a_row_by_hand() -> None:
    row = [sample(1, 2, 3, masked=1), sample(5, 1, 2)]
    arrays = row_arrays(row, pad_to=10, pad_token_id=9)
    first, second = identity(row[0]), identity(row[1])
    assert arrays.token_ids_T.tolist() == [first, 1, 100, 101, 102, second, 100, 101, 9, 9]
    assert arrays.position_ids_T.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1]
    assert arrays.sequence_ids_T.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, -1, -1]
    assert arrays.loss_mask_T.tolist() == [False, False, False, True, True, False, True, True, False, False]
    assert arrays.behaviour_logprobs_T.tolist() == [0, 0, -1, -2, -3, 0, -1, -2, 0, 0]
    assert arrays.advantages_T.tolist() == [0, 0, 1.5, 1.5, 1.5, 0, 5.5, 5.5, 0, 0]
    assert arrays.lags_T.tolist() == [0, 0, 1, 1, 1, 0, 2, 2, 0, 0]


def test_an_empty_row_is_two_masked_tokens() -> None:
    arrays = row_arrays(())
    assert {len(array) for array in arrays} == {2}
    assert not arrays.loss_mask_T.any()
    assert row_arrays((), pad_to=7).token_ids_T.size == 7


@settings(deadline=None)
@given(problems())
def test_arrays_keep_every_token(problem: Problem) -> None:
    for rows in minibatches(problem.solve()):
        for row in rows:
            arrays = row_arrays(row)
            kept = arrays.sequence_ids_T >= 0
            assert arrays.token_ids_T[kept].tolist() == [
                token for one in row for token in [*one.prompt_ids, *one.completion_ids]
            ]
            assert arrays.loss_mask_T.sum() == sum(one.loss_mask.sum() for one in row)


# --- prompts that are shared


def group(draw_id: int, prompt: int, completions: Sequence[int]) -> list[Sample]:
    """Samples with one prompt. The advantage of each is its identity."""
    first = sample(draw_id, prompt, 0)
    return [
        msgspec.structs.replace(sample(draw_id, prompt, length), prompt_ids=first.prompt_ids, advantage=next(IDENTITY))
        for length in completions
    ]


def shared_tokens(row: Sequence[Sample]) -> int:
    return sum(
        len(block[0].prompt_ids) + sum(len(one.completion_ids) for one in block) for block in prompt_blocks(row, True)
    )


@st.composite
def shared_problems(draw: st.DrawFn) -> Problem:
    shapes = st.tuples(st.integers(1, 12), st.lists(st.integers(0, 40), min_size=1, max_size=6))
    groups = draw(st.lists(shapes, min_size=1, max_size=9))
    return Problem(
        groups=[group(d, prompt, completions) for d, (prompt, completions) in enumerate(groups)],
        num_ranks=draw(st.integers(1, 5)),
        num_minibatches=draw(st.integers(1, 3)),
        row_tokens=draw(st.integers(1, 200)),
        share_prompts=True,
    )


@settings(deadline=None)
@given(shared_problems())
def test_with_shared_prompts_rows_are_bounded_and_hold_every_sample_once(problem: Problem) -> None:
    shards = problem.solve()
    for parts in zip(*(shard.minibatches for shard in shards), strict=True):
        assert len({len(rows) for rows in parts}) == 1
    rows = [row for rows in minibatches(shards) for row in rows]
    assert Counter(one.advantage for row in rows for one in row) == Counter(
        one.advantage for group in problem.groups for one in group
    )
    assert all(len(row) <= 1 or shared_tokens(row) <= problem.row_tokens for row in rows)
    assert all(len({one.draw_id for one in row}) == len(prompt_blocks(row, True)) for row in rows)
    assert [shard.minibatches for shard in problem.solve()] == [shard.minibatches for shard in shards]


def test_groups_stay_whole_where_that_costs_no_row() -> None:
    groups = [group(d, 50, [20, 20, 10]) for d in range(6)]
    rows = minibatches(Problem(groups, 1, 1, 210, share_prompts=True).solve())[0]
    assert [Counter(one.draw_id for one in row) for row in rows] == [{5: 3, 4: 3}, {3: 3, 2: 3}, {1: 3, 0: 3}]


def test_a_group_that_is_longer_than_a_row_is_split_and_each_part_has_the_prompt() -> None:
    rows = minibatches(Problem([group(0, 10, [30, 30, 30, 30])], 1, 1, 80, share_prompts=True).solve())[0]
    assert [shared_tokens(row) for row in rows] == [70, 70]


def test_a_split_that_costs_more_than_it_balances_is_not_made() -> None:
    # Two groups for two ranks: 100 and 96 tokens. Moving an answer of 2 tokens would copy a prompt of 80.
    groups = [group(0, 80, [10, 10]), group(1, 80, [8, 6, 2])]
    shards = Problem(groups, 2, 1, 300, share_prompts=True).solve()
    assert [[shared_tokens(row) for row in shard.minibatches[0]] for shard in shards] == [[100], [96]]


def test_ranks_without_a_group_get_answers_of_another() -> None:
    shards = Problem([group(0, 10, [100] * 8)], 4, 1, 1000, share_prompts=True).solve()
    assert [[shared_tokens(row) for row in shard.minibatches[0]] for shard in shards] == [[210]] * 4


@pytest.mark.parametrize("num_ranks", [1, 4])
@pytest.mark.parametrize("sigma", [0.9, 1.3])
def test_long_tailed_groups_fill_rows_and_ranks(sigma: float, num_ranks: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(np.log(70) - sigma**2 / 2, sigma, (128, 8)), 1400).astype(int)
    groups = [group(d, int(rng.integers(5, 15)), row.tolist()) for d, row in enumerate(lengths)]
    least = sum(shared_tokens(one) for one in groups)
    row_tokens = least // (6 * num_ranks) + 60
    shards = Problem(groups, num_ranks, 1, row_tokens, share_prompts=True).solve()
    rows = minibatches(shards)[0]
    assert len(rows) == 6 * num_ranks
    assert least / (len(rows) * row_tokens) > 0.95
    costs = np.array([[row_cost(row, True) for row in shard.minibatches[0]] for shard in shards])
    alone = sum(row_cost(one, True) for one in groups)
    assert alone / (costs.max(axis=0).sum() * num_ranks) > 0.97


def test_arrays_of_a_row_with_a_shared_prompt_by_hand() -> None:
    first, second = group(4, 2, [2, 1])
    third = sample(5, 1, 1)
    arrays = row_arrays([first, second, third], pad_to=8, share_prompts=True)
    prompt = first.prompt_ids.tolist()
    assert arrays.token_ids_T.tolist() == [*prompt, 100, 101, 100, identity(third), 100, 0]
    assert arrays.position_ids_T.tolist() == [0, 1, 2, 3, 2, 0, 1, 0]
    assert arrays.sequence_ids_T.tolist() == [0, 0, 0, 0, 1, 2, 2, -1]
    assert arrays.loss_mask_T.tolist() == [False, False, True, True, True, False, True, False]
    assert arrays.advantages_T.tolist() == [0, 0, *[first.advantage] * 2, second.advantage, 0, 5.5, 0]
    assert arrays.lags_T.tolist() == [0, 0, 1, 1, 1, 0, 2, 0]


def test_answers_of_one_draw_with_different_prompts_share_nothing() -> None:
    row = [sample(0, 2, 3), sample(0, 2, 3)]
    assert row_arrays(row, share_prompts=True).position_ids_T.tolist() == [0, 1, 2, 3, 4] * 2


def test_an_answer_after_a_shared_prompt_costs_what_it_adds() -> None:
    one, two = group(0, 30_000, [20_000, 10_000])
    both, prompt = row_cost([one, two], True), row_cost(group(1, 30_000, [0]), True)
    assert both == pytest.approx(row_cost([one]) + row_cost([two]) - prompt)


def bigram_loss(arrays: RowArrays, table_VV: torch.Tensor, loss_tokens: float) -> torch.Tensor:
    """The objective of a model that predicts token t from token t - 1 and its position alone."""
    ids_T = torch.from_numpy(arrays.token_ids_T % 7).long()
    logits_TV = table_VV[ids_T[:-1]] * (1 + torch.from_numpy(arrays.position_ids_T[:-1]).double()[:, None] / 10)
    logprobs_T = torch.log_softmax(logits_TV, -1).gather(1, ids_T[1:, None]).squeeze(1)
    logprobs_BT = torch.cat([logprobs_T.new_zeros(1), logprobs_T])[None]
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=logprobs_BT.detach(),
        behaviour_logprobs_BT=torch.from_numpy(arrays.behaviour_logprobs_T)[None],
        advantages_BT=torch.from_numpy(arrays.advantages_T)[None],
        loss_mask_BT=torch.from_numpy(arrays.loss_mask_T)[None],
        sequence_ids_BT=torch.from_numpy(arrays.sequence_ids_T)[None],
        lags_BT=torch.from_numpy(arrays.lags_T)[None],
        loss_tokens=loss_tokens,
        num_sequences=1,
    )
    return policy_loss(inputs, resolve(Objective(), max_tokens=64))[0]


def test_packed_on_many_ranks_or_each_sample_alone_the_gradient_is_the_same() -> None:
    rng = np.random.default_rng(3)
    groups = [[sample(d, int(rng.integers(1, 5)), int(rng.integers(0, 9))) for _ in range(4)] for d in range(5)]
    table_VV = torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    gradients = []
    for problem in (Problem(groups, 1, 1, 1), Problem(groups, 1, 1, 1000), Problem(groups, 3, 1, 20)):
        shards = problem.solve()
        losses = [
            bigram_loss(row_arrays(row), table_VV, shard.loss_tokens[0])
            for shard in shards
            for row in shard.minibatches[0]
        ]
        gradients.append(torch.autograd.grad(torch.stack(losses).sum(), table_VV)[0])
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-12, atol=1e-12)
