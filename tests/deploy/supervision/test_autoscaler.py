"""The decisions of the autoscaler, on metric lines worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.supervision.autoscaler import HALF, Autoscaler
from olmorl.deploy.view.verdict import Shape
from olmorl.errors import ConfigError

SETTINGS = config.build({"schedule": {"max_lag": 1, "steps": 1000}})
SHAPE = Shape.of(SETTINGS, engines=1)
LEARNER = 400.0
"""Tokens per second that the learner trains when it does not wait."""
ENGINE = 100.0
WINDOW = range(1, 2 * HALF + 2)


def lines(steps: range, engines: int, engine: float = ENGINE, awaiting_verdicts: float = 0.0) -> list[dict[str, Any]]:
    """Steps of 400 tokens: the slower of both sets the pace, and the learner waits for the rest of the time."""
    step_s = max(400 / LEARNER, 400 / (engine * engines))
    wait_s = step_s - 400 / LEARNER
    return [
        {
            "step": step,
            "wall_s": step * step_s,
            "tokens_trained_total": 400 * step,
            "tokens_generated_total": 400 * step,
            "engines": engines,
            "engine_slots": 8.0 * engines,
            "engine_slots_fraction": min(400 / step_s / (engine * engines), 1.0),
            "learner_wait_s": wait_s,
            "engine_capacity_tokens_per_s": engine * engines,
            "sequences_awaiting_verdicts": awaiting_verdicts,
        }
        for step in steps
    ]


@pytest.mark.parametrize(
    ("size", "bounds", "wanted"),
    [(1, (1, 9), 4), (2, (1, 3), 3), (4, (1, 9), 4), (5, (1, 9), 5), (9, (1, 9), 5), (9, (6, 9), 6)],
)
def test_a_window_asks_for_as_many_full_engines_as_the_learner_needs(
    size: int, bounds: tuple[int, int], wanted: int
) -> None:
    autoscaler = Autoscaler(bounds, SHAPE)
    assert autoscaler.wanted([], size) == size
    later = range(3, 3 + 2 * HALF + 1)
    assert autoscaler.wanted(lines(WINDOW, size), size) == size, "the batches before were another number's"
    assert autoscaler.wanted(lines(later, size), size) == wanted


def test_a_number_out_of_the_bounds_is_changed_at_once_and_only_full_windows_are_read() -> None:
    assert Autoscaler((2, 4), SHAPE).wanted([], 1) == 2
    assert Autoscaler((2, 4), SHAPE).wanted([], 6) == 4
    autoscaler = Autoscaler((1, 9), SHAPE)
    autoscaler.wanted([], 1)
    mixed = [*lines(range(3, 8), 2), *lines(range(8, 14), 1)]
    assert autoscaler.wanted(mixed, 1) == 1
    assert autoscaler.wanted(lines(range(3, 14), 1), 1) == 4
    # The cluster has no place: it is asked again after another window, not at each look.
    assert autoscaler.wanted(lines(range(3, 15), 1), 1) == 1
    assert autoscaler.wanted(lines(range(16, 27), 1), 1) == 4


def test_halves_that_disagree_and_a_wait_for_verifiers_change_nothing() -> None:
    autoscaler = Autoscaler((1, 9), SHAPE)
    autoscaler.wanted([], 2)
    fast = [line | {"wall_s": line["wall_s"] + 8} for line in lines(range(9, 14), 2, engine=2 * ENGINE)]
    halves = [*lines(range(3, 9), 2), *fast]
    assert autoscaler.wanted(halves, 2) == 2
    autoscaler.wanted([], 9)
    held = [line | {"learner_wait_s": 0.5} for line in lines(range(3, 14), 9, awaiting_verdicts=40.0)]
    assert autoscaler.wanted(held, 9) == 9, "the verifiers of these actors are what is slow"


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"actors\.autoscale = \[4, 1\]: write the fewest engines first"):
        config.build({"actors": {"autoscale": [4, 1]}})
