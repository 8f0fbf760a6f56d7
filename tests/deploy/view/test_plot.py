"""The figure of a run has the right curves, for any metric lines."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from olmorl.deploy.control import cli
from olmorl.deploy.view.plot import draw
from olmorl.errors import DataError

TITLES = [
    *("Reward", "Held-out accuracy", "Answer length, tokens", "Truncated answers", "Loss", "Entropy"),
    *("Gradient norm", "Lag, versions", "Throughput, tokens/s", "Time of the learner, s"),
]


def line(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "incarnation": 1,
        "reward_mean": 0.01 * step,
        "loss": -0.1 * step,
        "entropy_mean": 1.0 / step,
        "grad_norm": 0.5,
        "completion_tokens_mean": 100.0 + step,
        "truncated_fraction": 0.25,
        "learner_step_s": 1.5,
        "learner_wait_s": 68.0 if step == 1 else 0.5,
        "actor_tokens_per_s": 5000.0,
        "useful_tokens_per_s": 2000.0,
        "lag_mean": 0.5,
        "lag_max": 2,
        **more,
    }


def evaluated(version: int, accuracy: float | None) -> dict[str, Any]:
    values = {"version": version, "accuracy": accuracy, "reward_mean": accuracy}
    return {f"eval_held_out_{key}": value for key, value in values.items()}


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Draws lines, without a warning; returns the axes by their titles."""
    kept: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (kept.append(self), save(self, *args, **more)))

    def drawn(lines: list[dict[str, Any]], title: str = "a run") -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw(lines, tmp_path / "figure.png", title)
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
        assert kept[-1].get_suptitle() == title
        return {axes.get_title(loc="left"): axes for axes in kept[-1].axes}

    return drawn


def curves(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {each.get_label(): list(map(tuple, each.get_xydata())) for each in axes.get_lines()}


def test_all_of_it_has_a_panel(picture: Any) -> None:
    lines = [line(step) for step in range(1, 51)]
    lines[2] |= evaluated(0, 0.1)
    found = picture(lines)
    assert list(found) == TITLES
    assert curves(found["Loss"]).popitem()[1][9] == (10, -1.0)
    assert curves(found["Entropy"]).popitem()[1][3] == (4, 0.25)
    assert curves(found["Answer length, tokens"])["mean"][0] == (1, 101.0)
    assert curves(found["Truncated answers"]).popitem()[1][0] == (1, 0.25)


@pytest.mark.parametrize(("low", "high"), [(-10.0, 10.0), (0.0, 1.0), (-3.0, -1.0), (5.0, 2000.0), (0.5, 0.5)])
def test_rewards_of_any_size_are_seen_whole(picture: Any, low: float, high: float) -> None:
    values = [low + (high - low) * i / 29 for i in range(30)]
    axes = picture([line(i + 1, reward_mean=value) for i, value in enumerate(values)])["Reward"]
    bottom, top = axes.get_ylim()
    assert bottom < low and high < top
    assert top - bottom < 1.5 * (high - low) or low == high


def test_each_verifier_has_its_curve(picture: Any) -> None:
    more = {"reward_math_mean": 0.5, "reward_math_std": 9.0, "reward_my.concise_mean": -4.0, "batch_reward_mean": 7.0}
    more["reward__odd$_$name_mean"] = 1.0
    drawn = picture([line(step, **more) for step in (1, 2, 3)])
    assert set(curves(drawn["Reward"])) == {"all scored groups", "trained groups"}
    found = curves(drawn["Reward by verifier"])
    assert set(found) == {"math", "my.concise", "\u2009_odd\\$_\\$name"}
    assert found["my.concise"] == [(1, -4.0), (2, -4.0), (3, -4.0)]
    alone = [line(step, reward_math_mean=0.01 * step) for step in (1, 2, 3)]
    assert "Reward by verifier" not in picture(alone), "it is the reward"


def test_an_evaluation_is_drawn_at_its_version(picture: Any) -> None:
    lines = [line(step) for step in range(1, 31)]
    for arrived, version, accuracy in ((4, 0, 0.1), (19, 15, 0.6), (29, 25, None), (30, 30, 0.9)):
        lines[arrived - 1] |= evaluated(version, accuracy)
    found = picture(lines)
    assert curves(found["Held-out accuracy"]) == {"held_out": [(0, 0.1), (15, 0.6), (30, 0.9)]}
    assert curves(found["Reward"])["evaluation: held_out"] == [(0, 0.1), (15, 0.6), (30, 0.9)]


def test_an_evaluation_spans_the_versions_that_answered(picture: Any) -> None:
    told = [(0, (0, 6)), (10, (10, 12)), (20, ())]
    lines = [line(step) for step in range(1, 31)]
    for place, (version, by) in zip((7, 14, 25), told, strict=True):
        ends = zip(("oldest", "newest"), by, strict=False)
        lines[place] |= evaluated(version, 0.5) | {f"eval_held_out_version_{end}": value for end, value in ends}
    (spans,) = picture(lines)["Held-out accuracy"].collections
    assert [[x for x, _ in segment] for segment in spans.get_segments()] == [[0, 6], [10, 12], [20, 20]]


def test_a_part_of_an_evaluation_has_the_version_of_the_whole(picture: Any) -> None:
    lines = [line(1), line(2, **evaluated(1, 0.5), eval_held_out_math_accuracy=0.25)]
    found = curves(picture(lines)["Held-out accuracy"])
    assert found["held_out_math"] == [(1, 0.25)]


@pytest.mark.parametrize("num_steps", [2, 50, 2000])
def test_the_wait_of_a_start_does_not_flatten_the_others(picture: Any, num_steps: int) -> None:
    lines = [line(step) for step in range(1, num_steps + 1)]
    if num_steps > 2:
        lines[40] |= {"learner_wait_s": 9.0, "incarnation": 2}
    for each in lines[41:]:
        each["incarnation"] = 2
    axes = picture(lines)["Time of the learner, s"]
    assert 1.5 < axes.get_ylim()[1] < 2.0
    named = [note.get_text() for note in axes.texts]
    assert named == (["\u2191 68"] if num_steps == 2 else ["\u2191 68", "\u2191 9"])
    late = [line(step, learner_wait_s=30.0 if step == 9 else 0.5) for step in range(1, 11)]
    assert picture(late)["Time of the learner, s"].get_ylim()[1] > 30, "it is no start, so it is in the picture"


def test_one_step_alone_sets_the_scale(picture: Any) -> None:
    axes = picture([line(1)])["Time of the learner, s"]
    assert axes.get_ylim()[1] > 68 and not axes.texts


def test_many_steps_have_a_running_mean_over_the_single_values(picture: Any) -> None:
    lines = [line(step, reward_mean=float(step % 2)) for step in range(1, 2001)]
    axes = picture(lines)["Reward"]
    mean = curves(axes)["all scored groups"]
    assert len(axes.get_lines()) == 2
    assert all(value == pytest.approx(0.5) for _, value in mean[100:])


def test_what_is_missing_or_not_finite_is_a_gap(picture: Any) -> None:
    lines = [line(step) for step in range(1, 11)]
    for each, value in zip(lines[3:8], (None, nan, inf, "x", True), strict=True):
        each |= {"reward_mean": value, "loss": value}
    del lines[8]["loss"]
    found = picture(lines)
    assert [isnan(y) for _, y in curves(found["Reward"])["all scored groups"]] == [False] * 3 + [True] * 5 + [False] * 2
    assert [isnan(y) for _, y in curves(found["Loss"]).popitem()[1]] == [False] * 3 + [True] * 6 + [False]


def test_a_panel_without_a_value_is_left_out(picture: Any) -> None:
    lines = [{"step": step, "reward_mean": 0.5, "loss": None, "grad_norm": nan} for step in (1, 2)]
    assert list(picture(lines)) == ["Reward"]
    with pytest.raises(DataError, match="a run: its metric lines have no numbers to draw"):
        picture([{"step": 1, "reward_mean": None}])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_title_names_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    run_dir = tmp_path / "my_$run$"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line(step)) + "\n" for step in (1, 2)))
    file = tmp_path / f"figure.{ending}"
    assert cli.main([str(run_dir), "figure", str(file)]) == 0
    assert "2 steps" in capsys.readouterr().out
    assert file.stat().st_size > 1000
