"""The figures of a run, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from olmorl.deploy.plan.figures import figures_of


def line(step: int, wall_s: float, wait_s: float, tokens: int, lag: float) -> dict[str, Any]:
    return {
        "step": step,
        "wall_s": wall_s,
        "learner_wait_s": wait_s,
        "tokens_generated_total": 250 * step,
        "tokens_trained_total": 200 * step,
        "batch_tokens": tokens,
        "lag_mean": lag,
        "lag_max": step,
    }


def test_the_first_lines_are_not_counted_and_lags_are_weighted_by_tokens() -> None:
    lines = [line(1, 100.0, 90.0, 999, 0.0), line(2, 104.0, 1.0, 100, 1.0), line(3, 110.0, 2.0, 300, 2.0)]
    found = figures_of(lines, 1)
    assert (found.step_s, found.train_s, found.wait) == pytest.approx((5.0, 3.5, 0.3))
    assert (found.generated_per_s, found.trained_per_s) == pytest.approx((50.0, 40.0))
    assert (found.lag, found.lag_max, found.wasted) == pytest.approx((1.75, 3, 0.2))
