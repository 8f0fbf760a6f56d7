"""`olmorl-plan`: tables, files, and one message for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.plan import cli
from tests.deploy.folders import olmo3

from .conftest import Recipe

SHIPPED = Path(__file__).parents[3] / "deploy" / "recipes"
SMALL = ["--steps", "3", "--simulation.tail", "0.3"]


@pytest.fixture
def recipe_file(recipe: Recipe, tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(config.to_toml(recipe(run__mode="real", schedule__max_lag=1)))
    return str(path)


def test_a_plan_is_a_table_of_inputs_and_one_of_predictions(
    recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([recipe_file, *SMALL, "--no-sweep"]) == 0
    shown = capsys.readouterr().out
    assert "rates from the recipe's [simulation] section" in shown
    assert "an engine" in shown and "a training step" in shown
    (row,) = [line for line in shown.splitlines() if "1+1" in line]
    assert "recommended" not in shown
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[2:5] == ["1+1", "1", "8"]


def test_a_sweep_recommends_and_writes_a_picture_and_json(
    recipe_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, document = tmp_path / "plan.svg", tmp_path / "plan.json"
    files = ["--figure", str(picture), "--json", str(document)]
    assert cli.main([recipe_file, *SMALL, "--lags", "0,1", "--batches", "8", *files]) == 0
    found = json.loads(document.read_text())
    assert [(one["max_lag"], one["batch"]) for one in found["predictions"]] == [(0, 8), (1, 8)]
    assert found["recommended"]["max_lag"] in (0, 1)
    assert found["rates"]["tokens_per_s"] == 20.0
    assert found["run"] is None
    assert "recommended:" in capsys.readouterr().out
    drawn = picture.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "max_lag" in drawn or "<path" in drawn


def test_the_recommended_options_give_what_was_simulated(recipe_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--schedule.max_lag", "4", "--schedule.depth", "0"]
    assert cli.main([recipe_file, *SMALL, *options, "--lags", "4,2", "--batches", "8"]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("recommended:")]
    assert "--schedule.max_lag 2" in said and "--schedule.depth 2" in said


def test_options_set_the_rates(recipe_file: str, tmp_path: Path) -> None:
    document = tmp_path / "plan.json"
    options = ["--mean-tokens", "60", "--train-s", "4", "--engine-tokens-per-s", "500"]
    assert cli.main([recipe_file, *SMALL, *options, "--no-sweep", "--json", str(document)]) == 0
    rates = json.loads(document.read_text())["rates"]
    assert 32 * rates["tokens_per_s"] / (1 + 0.02 * 31) == pytest.approx(500)
    assert rates["mean_tokens"] == pytest.approx(60, rel=0.01)
    assert 8 * 4 * 60 / rates["train_tokens_per_s"] == pytest.approx(4, rel=0.01)


def test_a_plan_from_a_run_has_the_run_beside_its_prediction(
    finished: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = finished(schedule__steps=14)
    assert cli.main(["--from", str(run_dir), "--no-sweep"]) == 0
    shown = capsys.readouterr().out
    assert f"rates from {run_dir}," in shown
    assert "the run" in shown


def test_a_key_before_the_recipe_keeps_its_value(recipe_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The value of an unknown option would be taken for the recipe."""
    assert cli.main(["--schedule.max_lag", "4", recipe_file, "--no-sweep", *SMALL]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "1+1" in line]
    assert [cell.strip() for cell in row.split("│")][2:5] == ["1+1", "4", "8"]


def test_the_run_is_shown_only_beside_its_own_configuration_and_rates(
    finished: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = str(finished(schedule__steps=14))
    assert cli.main(["--from", run_dir, "--schedule.max_lag", "3", "--no-sweep", "--steps", "3"]) == 0
    assert cli.main(["--from", run_dir, "--train-s", "9", "--no-sweep", "--steps", "3"]) == 0
    assert "the run" not in capsys.readouterr().out
    assert cli.main(["--from", run_dir, "--simulation.solve_rate", "0.9", "--no-sweep"]) == 2
    assert "--simulation.solve_rate: the answers are those that" in capsys.readouterr().err


def test_random_answers_beside_the_speeds_of_a_run_are_those_of_the_recipe(
    finished: Callable[..., Path], tmp_path: Path
) -> None:
    document, run_dir = tmp_path / "plan.json", str(finished(schedule__steps=14))
    options = ["--mean-tokens", "60", "--simulation.solve_rate", "0.9", "--simulation.learned_per_version", "0"]
    assert cli.main(["--from", run_dir, *options, "--no-sweep", "--steps", "3", "--json", str(document)]) == 0
    rates = json.loads(document.read_text())["rates"]
    assert (rates["solve_rate"], rates["learned_per_version"]) == (0.9, 0.0)
    assert rates["mean_tokens"] == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RECIPE", "--weights.publish_every", "2", "--lags", "0,2", "--dry-run"], "max_lag 0, 8 prompts a step"),
        ([], "give a recipe, a finished run, or both: olmorl-plan RECIPE.toml --from RUN"),
        (["none.toml"], "none.toml: no such recipe"),
        (["--from", "nowhere"], "nowhere: no config.toml, so this is no run directory; give the folder of a run"),
        (["RECIPE", "--mean-tokens", "400"], "--mean-tokens 400 is not below sampling.max_tokens = 400"),
        (["RECIPE", "--mean-tokens", "-1"], "--mean-tokens: '-1' is not a number above 0"),
        (["RECIPE", "--train-s", "inf"], "--train-s: 'inf' is not a number above 0"),
        (["RECIPE", "--splits", "8:20"], "'8:20' is not a split; learner and actor nodes are written 8+20"),
        (["RECIPE", "--lags", "1,x"], "'x' is not a whole number of 0 or more"),
        (["RECIPE", "--batches", "0"], "'0' is not a whole number of 1 or more"),
        (["RECIPE", "--lag", "2"], "--lag: unknown argument (did you mean '--lags'?)"),
        (["RECIPE", "--schedule.maxlag", "2"], "unknown key"),
        (["RECIPE", "--no-sweep", "--steps", "2", "--figure", "/nowhere/plan.svg"], "name a .svg, .png or .pdf"),
        (["RECIPE", "--no-sweep", "--steps", "2", "--json", "/nowhere/plan.json"], "name a file in a folder"),
    ],
)
def test_a_mistake_gives_one_message_with_the_fix(
    recipe_file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main([recipe_file if word == "RECIPE" else word for word in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_publishing_is_a_share_of_the_training_step_where_the_model_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published 32B run: 1.46 s for a copy over PCIe and one forward pass that gathers the weights, and 125 s."""
    recipe = str(SHIPPED / "olmo3-32b-think.toml")
    known = ["--dry-run", "--no-sweep", "--mean-tokens", "14628", "--train-s", "125", "--model.path"]
    assert cli.main([recipe, *known, str(olmo3(tmp_path, "32b"))]) == 0
    assert "the learner waits 1.5 s for each version, 1.2% of its step" in capsys.readouterr().out
    assert cli.main([recipe, *known, str(tmp_path / "nowhere")]) == 0
    assert "publishing" not in capsys.readouterr().out.replace("publishing 0 s", "")


def test_a_dry_run_shows_what_would_be_tried(recipe_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([recipe_file, "--learner-nodes", "2", "--actor-nodes", "6", "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a sweep tries the splits 1+7, 2+6, 3+5, 4+4; then max_lag 0, 1, 2; then 4, 8, 16 prompts a step" in shown


def test_help_names_columns_and_what_is_not_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for words in ("--from RUN", "trained/s", "Not simulated", "exit codes"):
        assert words in shown
