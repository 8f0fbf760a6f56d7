"""The description of the curves names fields that exist, and every field of a line has its place."""

from __future__ import annotations

import pytest

from olmorl.deploy.view.curves import PANELS, SECTIONS, EvaluationPoint, evaluation_points, sections
from olmorl.metrics import family_of, meaning

FIELDS = sorted({field for panel in PANELS.values() for field in panel.curves})


@pytest.mark.parametrize("field", FIELDS)
def test_a_curve_is_a_field_that_lines_have(field: str) -> None:
    name = field.replace("*", "x")
    assert meaning(name) or family_of(name), field


def test_no_two_panels_have_one_title() -> None:
    assert len(PANELS) == sum(map(len, SECTIONS.values()))
    assert all(panel.good.endswith(".") for panel in PANELS.values())


def test_every_field_is_in_its_panel_or_comes_last() -> None:
    lag, unknown, hidden = ["lag_max", "lag_mean"], ["b_of_mine", "a_of_mine"], ["step", "tokens_lost_total"]
    parts = ["verifier_my_one_groups", "verifier_my_one_failed", "eval_held_out_pass_at_4", "eval_held_out_version"]
    made = dict(sections([*lag, *unknown, *hidden, *parts]))
    shown = {title: labels for panels in made.values() for title, _, labels in panels if labels}
    assert shown["Lag, versions"] == {"lag_mean": "mean", "lag_max": "largest"}
    assert shown["Groups by verifier"] == {parts[0]: "my_one", parts[1]: "my_one: failed"}
    assert shown["pass@k"] == {parts[2]: "held_out, k = 4"}
    assert [title for title, _, _ in made["Other fields"]] == sorted(unknown)
    assert {field for labels in shown.values() for field in labels} == {*lag, *unknown, *parts[:3]}


def test_the_points_of_an_evaluation_are_at_the_versions_that_it_measured() -> None:
    versions = {"version": 4, "version_oldest": 4, "version_newest": 6}
    lines = [
        {"step": 9, "eval_a_math_accuracy": 0.5} | {f"eval_a_{key}": value for key, value in versions.items()},
        {"step": 10, "eval_a_math_accuracy": None, "eval_a_version": 8},
        {"step": 11, "eval_a_math_accuracy": 0.25, "eval_a_version": 0},
        {"step": 12, "eval_a_math_accuracy": 1},
    ]
    assert evaluation_points(lines, "eval_a_math_accuracy") == [
        EvaluationPoint(0, 0.25, 0, 0, ""),
        EvaluationPoint(4, 0.5, 4, 6, "4-6"),
        EvaluationPoint(12, 1.0, 12, 12, ""),
    ]
