"""The command line accepts its options, and gives one message with exit code 2 for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.arguments import parse
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.launch import main
from olmorl.errors import ConfigError
from tests.deploy.folders import bare_model

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "deploy" / "recipes"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model as far as the launcher looks."""
    return bare_model(tmp_path / "model")


@pytest.fixture
def recipe(tmp_path: Path, model: Path) -> Path:
    """A recipe whose files are there; what a test breaks it breaks on the command line."""
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": "1 + 1", "ground_truth": "2", "dataset": "math"}) + "\n")
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[run]\nname = "t"\ndirectory = "{tmp_path}/runs"\n[model]\npath = "{model}"\n'
        f'[data]\ntrain = ["{tmp_path}/data.jsonl"]\n'
    )
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one message of a launch that must end with exit code 2."""
    assert main([str(argument) for argument in arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("olmorl-launch: ") and "Traceback" not in message
    return message


def test_overrides_by_dotted_name_and_by_well_known_option(recipe: Path) -> None:
    arguments = parse(
        [str(recipe), "--learner-nodes", "8", "--schedule.max_lag=4", "--objective.rho", "off", "--run.name", "x"]
    )
    settings = config.load(arguments.recipe, arguments.overrides)
    assert settings.learner.nodes == 8
    assert settings.schedule.max_lag == 4
    assert settings.objective.rho == "off"
    assert settings.run.name == "x"


@pytest.mark.parametrize("words", [["--nonsense"], ["--schedule.max_lag"], ["stray"]])
def test_words_that_mean_nothing_are_refused(recipe: Path, words: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse([str(recipe), *words])


def test_every_key_is_listed_with_type_choices_bounds_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help-keys"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    keys = config.reference()
    assert len(keys) > 100 and len({key.key for key in keys}) == len(keys)
    for key in keys:
        assert len(key.meaning) >= 8 and key.meaning.rstrip().endswith((".", ")")), f"{key.key} lacks a sentence"
        defaults = [key.default] if key.default else ["none", "of the preset"]
        assert any(f"--{key.key}   {key.wanted}   [default: {default}]\n" in shown for default in defaults)
    assert "see the recipe" not in shown
    for line in (
        "--run.seed   integer >= 0, < 2147483648   [default: 0]",
        '--objective.rho   number > 0 or "off" or "uncapped"   [default: of the preset]',
        '--learner.device   "auto" or "cpu" or "cuda"   [default: auto]',
        "--learner.betas   list of 2 numbers >= 0, < 1   [default: [0.9, 0.95]]",
        "--actors.cores   list of integers >= 0, at least 1 long   [default: none]",
        "--verifiers.weights   table of numbers by name   [default: {}]",
        "--data.strict   true or false   [default: false]",
    ):
        assert f"\n{line}\n" in f"\n{shown}"


def test_what_a_key_says_of_its_bounds_is_what_is_checked() -> None:
    """One step outside each bound is refused, for every number of a recipe."""
    tried = 0
    for key in config.reference():
        for bound in key.bounds.split(", ") if key.type in ("number", "integer") else ():
            sign, _, text = bound.partition(" ")
            step = 1 if key.type == "integer" else 1e-9
            outside = {">=": -step, "<=": step, ">": 0, "<": 0}.get(sign)
            if outside is None:
                continue
            *sections, leaf = key.key.split(".")
            tree: dict[str, Any] = {leaf: float(text) + outside if key.type == "number" else int(text) + outside}
            for section in reversed(sections):
                tree = {section: tree}
            with pytest.raises(ConfigError, match=key.key.replace(".", r"\.")):
                config.build(tree)
            tried += 1
    assert tried > 60


def test_no_number_of_a_recipe_may_be_infinite_or_none() -> None:
    numbers = [key for key in config.reference() if "number" in key.type]
    assert len(numbers) > 25
    for key in numbers:
        for bad in (float("inf"), float("-inf"), float("nan")):
            *sections, leaf = key.key.split(".")
            wrapped: Any = {"list of 2 numbers": [bad, 0.5], "table of numbers": {"math": bad}}.get(key.type, bad)
            if key.type.startswith("table"):
                wrapped = {"math": bad}
            tree: dict[str, Any] = {leaf: wrapped}
            for section in reversed(sections):
                tree = {section: tree}
            with pytest.raises(ConfigError, match=key.key.replace(".", r"\.")):
                config.build(tree)


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = f"{sys.executable} -m olmorl.deploy.launch --help-keys | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout.startswith("--run.name") and not done.stderr


def test_mistakes_in_the_recipe(capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path) -> None:
    assert "did you mean 'learning_rate'" in refusal(capsys, recipe, "--learner.learnig_rate", "1")
    assert "sampling.group_size" in refusal(capsys, recipe, "--sampling.group_size", "1")
    assert "learner.zero_stage" in refusal(capsys, recipe, "--learner.zero_stage", "4")
    assert "no such recipe" in refusal(capsys, tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    assert "line 1" in refusal(capsys, broken)


def test_mistakes_found_before_anything_starts(
    capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path, model: Path
) -> None:
    for spec in ("missing.jsonl", "missing.jsonl:1e-2", "./missing", "~/missing"):
        assert "no such file or folder" in refusal(capsys, recipe, "--data.train", f'["{spec}"]')
    assert "data.train" in refusal(capsys, recipe, "--data.train", "[]")
    assert "no config.json" in refusal(capsys, recipe, "--model.path", tmp_path)
    assert "no such model folder" in refusal(capsys, recipe, "--model.path", "./nothing-here")
    (model / "config.json").write_text("{")
    assert "not a model configuration" in refusal(capsys, recipe)


def test_on_a_cluster_paths_are_whole(
    capsys: pytest.CaptureFixture[str], recipe: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    there = ("--ray-address", "127.0.0.1:1")
    message = refusal(capsys, recipe, *there, "--model.path", model.name)
    assert f"model.path: {model.name}: processes on a cluster" in message and f"write {model}" in message
    (model.parent / "more.jsonl").touch()
    assert "data.train: more.jsonl" in refusal(capsys, recipe, *there, "--data.train", '["more.jsonl:2"]')


def test_places_where_no_run_can_be(capsys: pytest.CaptureFixture[str], recipe: Path) -> None:
    for place in (recipe, "/proc/nowhere", "x" * 300):
        assert ": set run.directory to" in refusal(capsys, recipe, "--run.directory", place)
    assert "/t: File name too long" in refusal(capsys, recipe, "--run.directory", "x" * 300, "--dry-run", "--resume")
    assert ": set run.directory to" in refusal(capsys, recipe, "--run.directory", recipe, "--model.build", "demo")


def test_more_nodes_than_this_machine_is(capsys: pytest.CaptureFixture[str], recipe: Path) -> None:
    message = refusal(capsys, recipe, "--learner-nodes", "2")
    assert "2 learner node(s)" in message and "--ray-address" in message


def test_a_redis_that_does_not_answer(capsys: pytest.CaptureFixture[str], recipe: Path) -> None:
    began = time.monotonic()
    message = refusal(capsys, recipe, "--queue.url", "redis://127.0.0.1:1/0", "--queue.outage_deadline_s", "1")
    assert "127.0.0.1:1" in message
    assert time.monotonic() - began < 30


def test_a_reward_function_that_does_not_import(
    capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "reward.py"
    file.write_text("import nothing_of_this_name\n")
    message = refusal(capsys, recipe, "--verifiers.functions", f'["{file}:score"]')
    assert "reward.py" in message and "nothing_of_this_name" in message


def test_a_run_that_is_there_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], recipe: Path, tmp_path: Path
) -> None:
    assert "no run to resume" in refusal(capsys, recipe, "--resume")
    ledger = tmp_path / "runs" / "t" / "ledger"
    ledger.mkdir(parents=True)
    (ledger / "000001.jsonl").touch()
    assert "--resume" in refusal(capsys, recipe)


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.toml")))
def test_every_recipe_that_ships_has_a_plan(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([str(RECIPES / name), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "in-flight budget" in shown and "[schedule]" in shown


def test_the_plan_of_the_cluster_run() -> None:
    settings = config.load(RECIPES / "olmo3-32b-think.toml", [("learner.nodes", "8"), ("actors.nodes", "20")])
    placed = plan(settings)
    assert placed.on_gpu
    assert (placed.ranks, placed.engines, placed.gpus_per_engine) == (64, 20, 8)
    assert placed.groups_in_flight == 9 * 128
    assert placed.learner_bundle()["GPU"] == 8 and placed.engine_bundle()["GPU"] == 8


def test_engines_and_ranks_get_cores_of_their_own(monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    placed = plan(config.load(recipe, [("actors.engines_per_node", "2"), ("learner.ranks_per_node", "2")]))
    assert placed.engine_cores == (0, 1) and placed.rank_cores == (2, 3)


@pytest.mark.parametrize("mode", ["real", "simulated"])
def test_too_few_cores_are_said(monkeypatch: pytest.MonkeyPatch, recipe: Path, mode: str) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    for engines, crowded in (("1", False), ("3", mode == "real")):
        settings = config.load(recipe, [("run.mode", mode), ("actors.engines_per_node", engines)])
        rows = dict(plan(settings).rows(settings))
        assert ("4 engines and ranks share 2 core(s)" in rows.get("crowded", "")) == crowded


def test_cores_of_other_hosts_are_left_to_them_unless_they_are_given(recipe: Path) -> None:
    there = [("cluster.address", "10.0.0.1:6379"), ("actors.nodes", "2"), ("actors.engines_per_node", "2")]
    placed = plan(config.load(recipe, there))
    assert placed.engine_cores == (None, None, None, None) and placed.rank_cores == (None,)
    placed = plan(config.load(recipe, [*there, ("actors.cores", "[4, 5]"), ("learner.cores", "[7]")]))
    assert placed.engine_cores == (4, 5, 4, 5) and placed.rank_cores == (7,)


def test_a_dry_run_without_the_model_loads_no_heavy_library(tmp_path: Path) -> None:
    """With the model it needs torch, for the memory plan."""
    asked = [str(RECIPES / "demo.toml"), "--dry-run", "--run.directory", str(tmp_path)]
    code = (
        "import sys; from olmorl.deploy.launch import main; "
        f"assert main({asked!r}) == 0; "
        "heavy = {'torch', 'vllm', 'deepspeed', 'ray', 'redis', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
