"""Advantages of a group, zero-gradient groups, overlong shaping."""

from __future__ import annotations

from itertools import pairwise
from math import fsum, nan
from statistics import fmean, variance
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.learner.algorithm.advantage import OVER_BATCH, advantages, is_zero_gradient, over_batch, overlong_penalty
from olmorl.learner.algorithm.presets import AdvantageKind

groups = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_mean_by_hand() -> None:
    assert advantages([1, 0, 0, 1, 1], "mean").tolist() == pytest.approx([0.4, -0.6, -0.6, 0.4, 0.4])


def test_mean_std_by_hand() -> None:
    # One right of four: mean 1/4, standard deviation sqrt(3)/4, so sqrt(3) and -1/sqrt(3).
    found = advantages([1, 0, 0, 0], "mean_std").tolist()
    assert found == pytest.approx([3**0.5, *[-(3**-0.5)] * 3], rel=1e-5)


def test_reward_scale_multiplies_the_mean_kind_and_cancels_in_the_other() -> None:
    assert advantages([1, 0], "mean", reward_scale=10).tolist() == [5.0, -5.0]
    assert advantages([1, 0], "mean_std", reward_scale=10).tolist() == pytest.approx([1, -1], rel=1e-5)


def test_mean_sample_std_by_hand() -> None:
    # One right of four: mean 1/4, standard deviation of a sample 1/2.
    assert advantages([1, 0, 0, 0], "mean_sample_std").tolist() == pytest.approx([1.5, *[-0.5] * 3], rel=1e-5)
    assert advantages([1, 0, 0, 0], "mean_sample_std", std_floor=0.5).tolist() == pytest.approx([0.75, *[-0.25] * 3])


def test_leave_one_out_by_hand() -> None:
    # The means of the others are 0, 1/3, 1/3, 1/3.
    assert advantages([1, 0, 0, 0], "leave_one_out").tolist() == pytest.approx([1, *[-1 / 3] * 3])


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 5)), min_size=2, max_size=16))
@pytest.mark.parametrize("kind", ["whiten", "mean_whiten"])
def test_whitened_advantages_have_mean_0_and_variance_1_over_the_tokens(
    kind: AdvantageKind, answers: list[tuple[float, int]]
) -> None:
    values, tokens = zip(*answers, strict=True)
    found = over_batch(np.array(values), np.array(tokens, dtype=float), kind)
    each = [value for value, number in zip(found.tolist(), tokens, strict=True) for _ in range(number)]
    assert not any(value for value, number in zip(found, tokens, strict=True) if not number)
    before = [value for value, number in answers for _ in range(number)]
    if len(set(before)) > 1 and variance(before) > 1e-3:
        assert fsum(each) == pytest.approx(0, abs=1e-9)
        assert variance(each) == pytest.approx(1, rel=1e-4)
        assert all(
            a == pytest.approx((b - fmean(before)) / (variance(before) + 1e-8) ** 0.5)
            for a, b in zip(each, before, strict=True)
        )


@pytest.mark.parametrize("kind", ["whiten", "mean_whiten", "gdpo"])
def test_a_batch_of_equal_advantages_teaches_nothing(kind: AdvantageKind) -> None:
    assert over_batch(np.full(3, 0.1 + 0.2), np.array([3.0, 1.0, 0.0]), kind).tolist() == [0, 0, 0]
    assert over_batch(np.array([0.0, 0.7]), np.array([0.0, 4.0]), kind).tolist() == [0, 0]
    assert over_batch(np.zeros(2), np.zeros(2), kind).tolist() == [0, 0]


@pytest.mark.parametrize("kind", [kind for kind in get_args(AdvantageKind) if kind not in OVER_BATCH])
def test_other_kinds_do_not_depend_on_the_batch(kind: AdvantageKind) -> None:
    assert over_batch(np.array([1.0, -1.0]), np.array([9.0, 1.0]), kind).tolist() == [1, -1]


@settings(deadline=None)
@given(groups, st.sampled_from([kind for kind in get_args(AdvantageKind) if kind not in ("whiten", "gae")]))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order(rewards: list[float], kind: AdvantageKind) -> None:
    found = advantages(rewards, kind)
    assert found.dtype == np.float64
    assert found.sum() == pytest.approx(0, abs=1e-6)
    pairs = sorted(zip(rewards, found, strict=True))
    assert all(low <= high for (_, low), (_, high) in pairwise(pairs))


@settings(deadline=None)
@given(groups)
def test_zero_gradient_means_that_all_are_equal(rewards: list[float]) -> None:
    spread, largest = max(rewards) - min(rewards), max(map(abs, rewards))
    if spread > max(1e-9 * largest, 1e-12):
        assert not is_zero_gradient(rewards)
    assert is_zero_gradient([rewards[0]] * 4)


@pytest.mark.parametrize(
    ("rewards", "equal"),
    [
        ([0.1 + 0.2, 0.3], True), ([-(0.1 + 0.2), -0.3], True), ([1e100, 1e100 * (1 + 1e-15)], True),
        ([0.7, 0.1 * 7, 0.7], True), ([0.0, 0.0], True), ([0.0, -0.0], True), ([1e-6, 1.1e-6], False),
        ([0.3, 0.3 + 1e-9], False), ([0.0, 1e-12], False), ([0.1 + 0.2 - 0.3, 0.0], True),
        ([1.0, 1.0, 0.999999], False), ([-1.0, 1.0], False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [kind for kind in get_args(AdvantageKind) if kind not in ("whiten", "gae")])
def test_rewards_that_differ_by_rounding_alone_teach_nothing(
    rewards: list[float], equal: bool, kind: AdvantageKind
) -> None:
    assert is_zero_gradient(rewards) == equal
    for scale in (1.0, 100.0):
        assert bool(np.all(advantages(rewards, kind, scale) == 0)) == equal


def test_a_group_of_one_and_a_reward_that_is_not_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="group_size must be 2 or more"):
        advantages([1.0], "mean")
    with pytest.raises(ValueError, match="finite"):
        advantages([1.0, nan], "mean")


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    # The published setting: 4,096 of 20,480.
    [(0, 0), (16_384, 0), (16_385, -1 / 4096), (18_432, -0.5), (20_480, -1), (30_000, -1)],
)
def test_overlong_penalty(num_tokens: int, penalty: float) -> None:
    assert overlong_penalty(num_tokens, max_tokens=20_480, buffer=4096) == penalty


def test_overlong_penalty_is_off_without_a_buffer() -> None:
    assert overlong_penalty(20_480, max_tokens=20_480, buffer=0) == 0
