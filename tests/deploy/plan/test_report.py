"""The picture of a plan has a column for each axis that was varied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from olmorl.deploy.plan.figures import Figures
from olmorl.deploy.plan.report import draw
from olmorl.deploy.plan.sweep import Choice, Prediction


def predicted(choice: Choice) -> Prediction:
    found = Figures(10.0, 8.0, 0.2, 200.0 * choice.batch, 100.0 * choice.batch, 0.5 * choice.max_lag, 2, 0.5)
    return Prediction(choice, found, busy=0.9, steps=720, devices=16)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    saved: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def test_each_axis_has_the_configurations_that_differ_on_it_alone(pictures: list[Any]) -> None:
    lags = [predicted(Choice(1, 1, lag, 8)) for lag in (1, 2, 4)]
    batches = [predicted(Choice(1, 1, 2, batch)) for batch in (4, 16)]
    draw([*lags, *batches], batches[0], Path("plan.svg"), "plan of $x$")
    axes = pictures[0].axes
    assert len(axes) == 6
    lowest = axes[4:]
    assert [[label.get_text() for label in one.get_xticklabels()] for one in lowest] == [
        ["1", "2", "4"],
        ["4", "8", "16"],
    ]
    assert [list(one.lines[0].get_ydata()) for one in lowest] == [[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]]
    # The recommended batch is marked, in the column of the batches alone.
    assert [len(one.lines) for one in lowest] == [1, 2]


def test_one_configuration_is_a_picture_too(pictures: list[Any]) -> None:
    only = predicted(Choice(1, 1, 2, 8))
    draw([only], only, Path("plan.svg"), "plan")
    assert len(pictures[0].axes) == 3
