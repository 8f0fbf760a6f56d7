"""The bound on engines with stragglers, by hand, a run that stays below it, and the policies in a model of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def stragglers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("measure", "stragglers", "straggler_policies"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return sys.modules["stragglers"]


def test_stretches_without_overlap_add_up(stragglers: ModuleType) -> None:
    # 40 steps of 16 draws; an answer of 1000 tokens takes 50 s alone. One at version 10 covers the steps 7 to 15.
    def groups(**long: int) -> list[list[int]]:
        return [[long.get(f"v{draw // 16}", 1) if draw % 16 == 3 else 1] * 2 for draw in range(640)]

    short = 1 / 20.0
    assert stragglers.least_seconds(groups(v10=1000)) == pytest.approx(50.0, abs=5 * short)
    assert stragglers.least_seconds(groups(v10=1000, v18=800)) == pytest.approx(50.0, abs=5 * short)
    assert stragglers.least_seconds(groups(v10=1000, v19=800)) == pytest.approx(90.0, abs=5 * short)


def test_the_lengths_are_those_that_the_engines_sample(stragglers: ModuleType) -> None:
    settings = stragglers.recipe(stragglers.Cell(1, 32, 1.3), 0, "unused")
    tokens = [token for group in stragglers.lengths(settings, 2000) for token in group]
    assert sum(tokens) / len(tokens) == pytest.approx(stragglers.MEAN, rel=0.1)
    assert max(tokens) == stragglers.CUT * stragglers.MEAN


def test_a_run_stays_below_the_bound_and_loses_nothing(stragglers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "STEPS", 10)
    found = stragglers.measured(stragglers.Cell(4, 32, 1.3), 0)
    assert 0.1 < found.busy < 1
    assert found.bound < 1
    assert found.lag_max <= stragglers.LAG and found.lost == 0


@pytest.mark.usefixtures("stragglers")
def test_the_model_without_delays_is_as_fast_as_the_service_or_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    policies, service = sys.modules["straggler_policies"], sys.modules["stragglers"]
    monkeypatch.setattr(service, "STEPS", 30)
    ours = next(policy for policy in policies.POLICIES if policy.may_begin is policies.learner_rests)
    busy, speed = zip(*(policies.figures(ours, 30 + policies.WARM_UP, seed) for seed in range(2)), strict=True)
    runs = [service.measured(policies.CELL, seed) for seed in range(2)]
    assert 0.95 < sum(speed) / sum(run.speed for run in runs) < 1.2
    assert 0.95 < sum(busy) / sum(run.busy for run in runs) < 1.2


@pytest.mark.usefixtures("stragglers")
def test_no_policy_is_faster_than_full_engines_and_the_bound_of_draws_in_their_order() -> None:
    policies, service = sys.modules["straggler_policies"], sys.modules["stragglers"]
    cell, steps = service.Cell(4, 32, 1.3), 40
    groups = service.lengths(service.recipe(cell, 0, "unused"), steps * service.BATCH)
    for policy in policies.POLICIES:
        model = policies.Model(service.lengths(service.recipe(cell, 0, "unused"), 2000), policy, cell)
        model.run(steps)
        seconds, tokens, _ = model.steps[-1]
        assert tokens / seconds <= service.full_speed(cell), policy.name
        if policy.sorted_draws == 1:
            assert seconds >= service.least_seconds(groups), policy.name
