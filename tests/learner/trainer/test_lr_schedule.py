"""The learning rate of each step, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from olmorl.config import Learner
from olmorl.learner.trainer.lr_schedule import learning_rate


def rates(schedule: str, steps: int, warmup: int = 0) -> list[float]:
    learner = Learner(learning_rate=1.0, schedule=schedule, warmup_steps=warmup)
    return [round(learning_rate(step, learner, steps), 6) for step in range(1, steps + 1)]


def test_constant_after_a_warm_up() -> None:
    assert rates("constant", 5, warmup=2) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_ends_one_step_before_zero() -> None:
    assert rates("linear", 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates("linear", 6, warmup=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert rates("cosine", 4) == [1.0, 0.853553, 0.5, 0.146447]


def test_steps_past_the_end_stay_at_zero() -> None:
    learner = Learner(learning_rate=1.0, schedule="linear")
    assert learning_rate(9, learner, 4) == 0.0


def test_an_extended_run_goes_on_from_its_last_rate() -> None:
    """4 linear steps end at 0.25. Of 4 more steps, the one after the last would have 0."""
    extended = {"learning_rate": 1.0, "schedule": "linear"}
    kept, falling = (Learner(**extended, extended=f"{kind} 4") for kind in ("keep", "decay"))
    assert [learning_rate(step, kept, 8) for step in range(1, 9)] == [1.0, 0.75, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert [round(learning_rate(step, falling, 8), 6) for step in range(4, 9)] == [0.25, 0.2, 0.15, 0.1, 0.05]
    again = Learner(**extended, extended="decay 4, keep 8, decay 10")
    assert all(learning_rate(step, again, 12) == learning_rate(step, falling, 8) for step in range(1, 9))
    assert [round(learning_rate(step, again, 12), 6) for step in range(9, 13)] == [0.05, 0.05, 0.033333, 0.016667]


@pytest.mark.slow
def test_a_changed_rate_is_that_of_the_optimizer_also_in_a_start_from_a_checkpoint(
    run_ranks: Callable[..., Any], tiny_models: dict[str, str]
) -> None:
    base = {"kind": "changed_rate", "model": {"path": tiny_models["qwen2"], "dtype": "float32"}}
    results = run_ranks(
        2, {f"z{stage}": base | {"learner": {"learning_rate": 1e-3, "zero_stage": stage}} for stage in (0, 2, 3)}
    )
    for ranks in results.values():
        for found in ranks:
            assert found["rates"] == [{1e-3}, {5e-5}, {5e-5}, {2e-4}], "what AdamW applies"
            assert found["said"] == [1e-3, 5e-5, 5e-5, 2e-4], "what the metrics say"
            assert all(np.array_equal(found["before"][name], found["after"][name]) for name in found["before"])
