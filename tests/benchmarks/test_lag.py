"""The laboratory of lag: which weights learn from stale answers, and which metric says so before learning fails."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
ALERTS = FOLDER.parent / "deploy/prometheus/alerts.yml"
ESS = "importance_ess_fraction_answers"
SEEDS = range(4)


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
    return [lag.learn(seed, versions, lag.RULES[rule], lag.COLUMNS[column], steps=steps) for seed in SEEDS]


def steps_of(found: list[Any]) -> float:
    return mean(run.steps or 50 for run in found)


@pytest.mark.parametrize("versions", [4, 8])
def test_a_weight_that_sees_the_answer_learns_from_stale_ones_as_from_fresh_ones(
    lag: ModuleType, versions: int
) -> None:
    fresh, token, auto = (runs(lag, *cell) for cell in (("token", 0), ("token", versions), ("auto", versions)))
    assert steps_of(auto) < 1.15 * steps_of(fresh) < steps_of(token)
    assert mean(run.right[-1] for run in auto) == pytest.approx(mean(run.right[-1] for run in fresh), abs=0.02)


def test_noise_of_a_token_costs_nothing_with_the_numerics_of_the_learner(lag: ModuleType) -> None:
    fresh, noisy = runs(lag, "token", 0), runs(lag, "auto", 4, "noise 0.3")
    own = runs(lag, "two_factor", 4, "noise 0.3")
    assert steps_of(own) < 1.1 * steps_of(fresh) < steps_of(noisy)
    assert mean(run.right[-1] for run in own) > mean(run.right[-1] for run in fresh) - 0.02


def test_fresh_answers_have_the_published_weights(lag: ModuleType) -> None:
    assert [run.right for run in runs(lag, "auto", 0, steps=6)] == [run.right for run in runs(lag, "token", 0, steps=6)]


def alert_bound() -> float:
    """The effective sample size of answers below which the alert fires."""
    found = re.search(r"ess_fraction_answers\[15m\]\) < ([\d.]+)", ALERTS.read_text(encoding="utf-8"))
    assert found is not None
    return float(found.group(1))


@pytest.mark.parametrize("column", ["total 3", "total 10"])
def test_the_alert_fires_before_one_weight_for_a_noisy_long_answer_fails(lag: ModuleType, column: str) -> None:
    failed = runs(lag, "answer", 4, column)
    assert steps_of(failed) > 1.5 * steps_of(runs(lag, "token", 0))
    assert all(metrics[ESS] < alert_bound() for run in failed for metrics in run.metrics[:3]), "from the first step on"


@pytest.mark.parametrize(("versions", "column"), [(4, "total 3"), (4, "total 10"), (8, "clean"), (8, "stale filler")])
def test_the_alert_stays_silent_where_stale_answers_teach(lag: ModuleType, versions: int, column: str) -> None:
    learned = runs(lag, "auto", versions, column)
    assert all(run.steps is not None for run in learned)
    assert all(metrics[ESS] > alert_bound() for run in learned for metrics in run.metrics)


def test_the_divergence_of_an_answer_grows_while_tokens_show_nothing(lag: ModuleType) -> None:
    slow = runs(lag, "token", 8)
    assert mean(run.right[-1] for run in slow) < 0.95
    peak = [max(metrics["kl_engine_learner_answers"] for metrics in run.metrics) for run in slow]
    assert mean(peak) > 0.4
    assert min(metrics["importance_ess_fraction"] for run in slow for metrics in run.metrics[:10]) > 0.9
