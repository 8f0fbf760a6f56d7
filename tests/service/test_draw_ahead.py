"""Draws that follow measured times, in whole runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.learner.batching.draw_ahead import VersionWait

Build = Callable[..., Any]
SLOW_LEARNER = {
    "schedule.max_lag": 6,
    "schedule.steps": 24,
    "simulation.train_tokens_per_s": 150.0,
    "simulation.learned_per_version": 0.0,
}


def test_adaptive_draws_lower_the_lag_and_the_learner_does_not_wait(service: Build) -> None:
    lag, wait = {}, {}
    for draw_ahead in ("fixed", "adaptive"):
        run = service({"schedule.draw_ahead": draw_ahead, **SLOW_LEARNER})
        run_simulated(run.run())
        run.check_lines()
        after_first = run.lines[1:]
        lag[draw_ahead] = mean(line["lag_mean"] for line in after_first)
        wait[draw_ahead] = sum(line["learner_wait_s"] for line in after_first) / run.lines[-1]["wall_s"]
    assert lag["adaptive"] < 0.75 * lag["fixed"]
    assert wait["adaptive"] <= wait["fixed"] + 0.01


def test_adaptive_draws_measure_again_after_a_crash(service: Build) -> None:
    run = service({"schedule.draw_ahead": "adaptive", **SLOW_LEARNER})

    async def story() -> None:
        await run.start()
        await run.steps(8)
        await run.crash(actors=True)
        await run.start(resume=True)
        await run.finish()

    run_simulated(story())
    run.check_lines()
    assert len(run.lines) == 24
    assert min(line["groups_in_flight"] for line in run.lines[12:17]) < 6 * 8


@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_the_fixed_depth_bounds_adaptive_draws(service: Build, max_lag: int, over_age: str) -> None:
    run = service(
        {
            "schedule.draw_ahead": "adaptive",
            "schedule.max_lag": max_lag,
            "schedule.over_age": over_age,
            "simulation.tail": 1.2,
        }
    )
    run_simulated(run.run())
    run.check_lines()
    assert all(line["groups_in_flight"] <= (max_lag + 1) * 8 for line in run.lines)
    assert len(run.in_flight) <= run.lines[-1]["groups_in_flight"] <= max_lag * 8


@pytest.mark.parametrize("publish_every", [1, 2, 3])
def test_draws_that_wait_for_a_version_get_it(
    service: Build, monkeypatch: pytest.MonkeyPatch, publish_every: int
) -> None:
    """Stragglers hold up a fast learner: draws wait for versions, also when only some steps publish one."""
    waits = []
    paying = VersionWait.pays.fget
    assert paying is not None

    def pays(wait: VersionWait) -> bool:
        waits.append(paying(wait))
        return bool(waits[-1])

    monkeypatch.setattr(VersionWait, "pays", property(pays))
    run = service(
        {
            "schedule.max_lag": 4,
            "schedule.steps": 40,
            "schedule.filter_zero_gradient": False,
            "weights.publish_every": publish_every,
            "simulation.tail": 1.5,
            "simulation.train_tokens_per_s": 1e5,
        }
    )
    run_simulated(run.run())
    run.check_lines()
    assert len(run.lines) == 40 and max(line["lag_max"] for line in run.lines) <= 4
    assert run.lines[-1]["groups_stale_total"] == 0
    assert any(waits)
