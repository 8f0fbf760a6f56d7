"""Sampling parameters of training and evaluation."""

from __future__ import annotations

from collections.abc import Callable

from olmorl import config, seeds
from olmorl.actors.sampling_params import SamplingRule
from olmorl.messages import Prompt


def test_training_is_sampled_as_configured_with_a_seed_of_its_own(draw: Callable[..., Prompt]) -> None:
    rule = SamplingRule(config.SamplingSettings(max_tokens=64, stop=["END"]), config.Evaluation(), run_seed=7)
    sampling = rule(draw(5, attempt=2), 3)
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (1.0, 64, ("END",))
    assert sampling.seed == seeds.derive(7, "train", 5, 2, 3)


def test_attempts_and_indices_are_sampled_apart(draw: Callable[..., Prompt]) -> None:
    rule = SamplingRule(config.SamplingSettings(), config.Evaluation(), run_seed=7)
    drawn = {rule(draw(5, attempt=attempt), index).seed for attempt in (1, 2) for index in range(8)}
    assert len(drawn) == 16


def test_without_a_seed_of_the_run_the_engine_samples_with_its_own(draw: Callable[..., Prompt]) -> None:
    rule = SamplingRule(config.SamplingSettings(), config.Evaluation(), run_seed=None)
    assert rule(draw(5), 0).seed is None
    assert rule(draw(5, lane="held_out"), 0).seed is None


def test_evaluation_is_greedy_with_its_own_length(draw: Callable[..., Prompt]) -> None:
    training = config.SamplingSettings(max_tokens=64, temperature=0.7)
    rule = SamplingRule(training, config.Evaluation(max_tokens=128), run_seed=7)
    sampling = rule(draw(5, lane="held_out"), 0)
    assert (sampling.temperature, sampling.max_tokens) == (0.0, 128)


def test_evaluation_falls_back_to_the_length_of_training(draw: Callable[..., Prompt]) -> None:
    rule = SamplingRule(config.SamplingSettings(max_tokens=64), config.Evaluation(temperature=0.6), run_seed=7)
    sampling = rule(draw(5, lane="held_out"), 0)
    assert (sampling.temperature, sampling.max_tokens) == (0.6, 64)
