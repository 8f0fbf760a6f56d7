"""Rates, units and answers of a plan, by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from olmorl.deploy.plan.workload import (
    RecordedAnswer,
    RecordedAnswers,
    Units,
    Workload,
    least_step_s,
    mean_within,
    mean_without_limit,
    simulated_settings,
)
from olmorl.messages import Version
from olmorl.ports import Sampling
from olmorl.simulation import Simulation

from .conftest import Recipe


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.3])
def test_the_mean_with_a_limit_is_that_of_samples(sigma: float) -> None:
    source = random.Random(0)
    samples = [min(source.lognormvariate(np.log(100) - sigma**2 / 2, sigma), 250) for _ in range(100_000)]
    assert mean_within(100, sigma, 250) == pytest.approx(np.mean(samples), rel=0.01)


def test_a_mean_without_limit_gives_the_mean_with_the_limit() -> None:
    assert mean_within(mean_without_limit(14_628, 0.7, 32_768), 0.7, 32_768) == pytest.approx(14_628)
    assert mean_without_limit(100, 0.0, 1000) == pytest.approx(100)
    with pytest.raises(ValueError, match="a mean of 300 tokens with at most 250"):
        mean_without_limit(300, 0.7, 250)


def test_a_step_takes_as_long_as_the_slower_side(recipe: Recipe) -> None:
    # 8 groups of 4 answers of 40 tokens, cut at 400, which a tail of 0.7 hardly reaches.
    settings = recipe()
    tokens = 8 * 4 * mean_within(40, 0.7, 400)
    engine = 32 * 20.0 / (1 + 0.02 * 31)
    fast = Workload(settings.simulation.model_copy(update={"train_tokens_per_s": 1e6}))
    assert least_step_s(settings, Workload(settings.simulation)) == pytest.approx(tokens / 300.0)
    assert least_step_s(settings, fast) == pytest.approx(tokens / engine)


def test_units_shorten_what_is_long_and_keep_all_ratios(recipe: Recipe) -> None:
    settings = recipe(sampling__max_tokens=40_000, learner__ranks_per_node=2)
    load = Workload(settings.simulation.model_copy(update={"mean_tokens": 4000.0, "train_overhead_s": 10.0}))
    units = Units.fitting(settings, load)
    small = simulated_settings(settings, load, units, "unused")
    assert units.tokens == pytest.approx(20.0, rel=0.01)
    assert least_step_s(small, Workload(small.simulation)) == pytest.approx(25.0, rel=0.01)
    assert small.simulation.train_tokens_per_s == pytest.approx(2 * 300.0 * units.seconds / units.tokens)
    assert small.simulation.train_overhead_s * units.seconds == pytest.approx(10.0)
    assert units.real_speed(small.simulation.tokens_per_s) == pytest.approx(20.0)
    assert small.sampling.max_tokens == pytest.approx(2000, rel=0.01)


def test_recorded_groups_come_in_their_order_then_from_the_last_third() -> None:
    groups = [[RecordedAnswer(10 * n + 1, n % 2 == 0), RecordedAnswer(10 * n + 3, False)] for n in range(6)]
    answers = RecordedAnswers(groups)

    def answer(row: int, index: int) -> tuple[int, bool]:
        one = answers.sample(f"train/lease/{index}", np.array([row], np.int32), Sampling(max_tokens=99))
        return one.num_tokens, one.is_right(Version(1, 0))

    assert [answer(row, 0) for row in range(3)] == [(1, True), (11, False), (21, True)]
    assert answer(2, 1) == (23, False)
    assert {answer(row, 0)[0] for row in range(6, 60)} == {41, 51}
    assert answer(17, 0) == answer(17, 0)


def test_recorded_lengths_are_counted_in_units() -> None:
    answers = RecordedAnswers([[RecordedAnswer(1000, True), RecordedAnswer(3, True)]], token_unit=50.0)
    lengths = [
        answers.sample(f"a/b/{i}", np.array([0], np.int32), Sampling(max_tokens=99)).num_tokens for i in range(2)
    ]
    assert lengths == [20, 1]


def test_the_mean_of_recorded_answers_respects_the_limit() -> None:
    load = Workload(Simulation(), [[RecordedAnswer(100, True), RecordedAnswer(700, True)]])
    assert load.expected_tokens(500) == 300
    assert load.with_mean(200, 500).expected_tokens(500) == pytest.approx(200)
