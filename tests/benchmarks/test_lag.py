"""The laboratory of lag: which weights learn from stale answers, and which metric says so before learning fails."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SEEDS = range(4)
FILLER = 256


@pytest.fixture(scope="module")
def lag() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("measure", "lag"):
            spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        yield module


def runs(lag: ModuleType, rule: str, versions: int, column: str = "clean", steps: int = 36) -> list[Any]:
    chosen = lag.COLUMNS[column]
    chosen = replace(chosen, filler=FILLER if chosen.filler else 0)
    return [lag.learn(seed, versions, lag.RULES[rule], chosen, steps=steps) for seed in SEEDS]


def steps_of(found: list[Any]) -> float:
    return mean(run.steps or 50 for run in found)


def test_a_weight_that_sees_the_answer_learns_from_stale_ones_as_from_fresh_ones(lag: ModuleType) -> None:
    fresh, token, auto = (runs(lag, *cell) for cell in (("token", 0), ("token", 4), ("auto", 4)))
    assert steps_of(auto) < 1.25 * steps_of(fresh) < steps_of(token)
    assert mean(run.right[-1] for run in auto) == pytest.approx(mean(run.right[-1] for run in fresh), abs=0.02)


def test_fresh_answers_have_the_published_weights(lag: ModuleType) -> None:
    assert [run.right for run in runs(lag, "auto", 0, steps=6)] == [run.right for run in runs(lag, "token", 0, steps=6)]


def test_the_effective_sample_size_of_answers_warns_before_learning_fails(lag: ModuleType) -> None:
    # Engine noise on long answers: one weight for an answer leaves nothing to learn from, and the first steps say so.
    failed, learns = runs(lag, "answer", 4, "total 10"), runs(lag, "auto", 4, "total 3")
    assert all(run.steps is None for run in failed)
    assert all(run.steps is not None for run in learns)
    name = "importance_ess_fraction_answers"
    assert all(metrics[name] < 0.1 for run in failed for metrics in run.metrics[:3])
    assert all(metrics[name] > 0.5 for run in learns for metrics in run.metrics), "the bound of the alert"


def test_the_divergence_of_an_answer_grows_while_tokens_show_nothing(lag: ModuleType) -> None:
    slow = runs(lag, "token", 8)
    assert mean(run.right[-1] for run in slow) < 0.95
    peak = [max(metrics["kl_engine_learner_answers"] for metrics in run.metrics) for run in slow]
    assert mean(peak) > 0.4
    assert min(metrics["importance_ess_fraction"] for run in slow for metrics in run.metrics[:10]) > 0.9
