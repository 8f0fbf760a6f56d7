"""Whole runs without interruption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from olmorl import metrics
from olmorl.clock import run_simulated

Build = Callable[..., Any]


@pytest.mark.parametrize("max_lag", [0, 1, 4, 8])
@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
def test_every_line_balances_and_no_token_is_too_old(service: Build, max_lag: int, over_age: str) -> None:
    run = service({"schedule.max_lag": max_lag, "schedule.over_age": over_age, "simulation.tail": 1.2})
    assert run_simulated(run.run()).reason == "all 12 steps are done"
    run.check_lines()
    assert len(run.lines) == 12
    assert set(metrics.ALWAYS) <= set(run.lines[-1])
    assert run.lines[-1]["groups_in_flight"] == 0
