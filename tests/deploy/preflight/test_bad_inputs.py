"""Each user error gives one message with the place and the fix, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from olmorl.config import Config
from olmorl.deploy import launch
from olmorl.deploy.view.run_state import note_end
from olmorl.learner.storage import checkpoint_dir
from tests.deploy.folders import bare_model
from tests.deploy.hub_settings import use_hub
from tests.deploy.preflight.bad_inputs import CASES, DRY, Case, made_run

ROOT = Path(__file__).resolve().parents[3]
FIELD = re.compile(rf"\b({'|'.join(Config.model_fields)})\.[a-z_]+|--[a-z]+|recipe\.toml")
"""Where a mistake is: a key, an option, or the recipe itself."""
MOST_S = 15.0
"""Far above what any of them takes on a quiet machine: the tests share theirs."""
RECIPE = """
[run]
name = "t"
directory = "{w}/runs"
[model]
path = "{w}/model"
[data]
train = ["{w}/data.jsonl"]
max_prompt_tokens = 64
[sampling]
max_tokens = 64
[schedule]
prompts_per_step = 4
"""
OF_PROCESSES = (
    "run.seed=-1",
    "a key twice",
    "an unknown weight",
    "a recipe that is not TOML",
    "no GPU here",
    "a hub name",
    "weights cut in half",
    "no tokenizer",
    "a template that refuses all",
    "a line cut off",
    "a module that is missing",
    "a forgotten override",
)
"""Cases that are tried as commands too; the others are the same code in this process."""


class Started(Exception):
    """The launcher went on to start a run."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a run could start, and everything that it might leave behind."""
    folder = tmp_path / "world"
    for name in ("", "temporary", "hub"):
        (folder / name).mkdir()
    bare_model(folder / "model")
    row = {"ground_truth": "2", "dataset": "math"}
    lines = [json.dumps({"prompt": f"What is {n} + 1?", **row}) + "\n" for n in range(8)]
    (folder / "data.jsonl").write_text("".join(lines))
    turns = [{"role": "user", "content": "What is 1 + 1?"}]
    (folder / "turns.jsonl").write_text("".join(json.dumps({"messages": turns, **row}) + "\n" for _ in range(8)))
    (folder / "reward.py").write_text(
        "LIMIT = 3\ndef short(prompts, completions, **columns):\n    return [0.0] * len(completions)\n"
        "def wants(completions, solution, other=None):\n    return [0.0] * len(completions)\n"
    )
    (folder / "recipe.toml").write_text(RECIPE.replace("{w}", str(folder)))
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    use_hub(monkeypatch, folder, offline=True)
    return folder


@pytest.fixture(autouse=True)
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the start of Ray, and no further."""

    def refuse(own: bool) -> None:
        raise Started

    monkeypatch.setattr(launch, "guard_ray", refuse)


def filled(text: str, world: Path) -> str:
    return text.replace("{w}", str(world))


def command_line(case: Case, world: Path) -> list[str]:
    if case.spoil is not None:
        case.spoil(world)
    return [str(world / "recipe.toml"), *(filled(word, world) for word in case.arguments)]


def tree(world: Path) -> set[Path]:
    return set(world.rglob("*"))


def judge(case: Case, world: Path, code: int, said: str, printed: str) -> None:
    assert code == 2, said
    assert said.count("olmorl-launch: ") == 1 and "Traceback" not in said + printed, said
    assert not printed, "a mistake is said in one message"
    assert FIELD.search(said), f"no key, option or recipe is named in {said!r}"
    for words in case.says:
        assert filled(words, world) in said, f"{words!r} is not in {said!r}"


def refusal(case: Case, world: Path, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    arguments = [*command_line(case, world), *more]
    before, began = tree(world), time.monotonic()
    try:
        code = launch.main(arguments)
    except SystemExit as left:  # by argparse
        assert isinstance(left.code, int)
        code = left.code
    took_s = time.monotonic() - began
    captured = capsys.readouterr()
    judge(case, world, code, captured.err, captured.out)
    assert tree(world) == before, "something was left behind"
    assert took_s < MOST_S


def test_the_table_is_long_and_its_names_are_its_own() -> None:
    assert len(CASES) >= 200
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(OF_PROCESSES) <= set(names)
    assert all(len(case.says) >= 1 and all(case.says) for case in CASES)


@pytest.mark.parametrize("data", ["data.jsonl", "turns.jsonl"])
def test_the_world_as_it_is_starts(world: Path, data: str) -> None:
    with pytest.raises(Started):
        launch.main([str(world / "recipe.toml"), "--data.train", f'["{world / data}"]'])
    assert not (world / "runs").exists()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_one_message_and_leaves_nothing(
    case: Case, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    refusal(case, world, capsys)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not psutil.wait_procs(left, timeout=5)[1], "a process was left behind"


@pytest.mark.parametrize("case", DRY, ids=lambda case: case.name)
def test_a_dry_run_refuses_what_no_file_is_needed_for(
    case: Case, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal(case, world, capsys, "--dry-run")


@pytest.mark.parametrize("name", OF_PROCESSES)
def test_the_command_itself(name: str, world: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    arguments = command_line(case, world)
    before = tree(world)
    done = subprocess.run(
        [sys.executable, "-m", "olmorl.deploy.launch", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    judge(case, world, done.returncode, done.stderr, done.stdout)
    assert tree(world) == before


@pytest.mark.parametrize(
    ("more", "is_over"),
    [((), True), (("--from-step", "1"), False), (("--change", "--data.epochs", "3"), False)],
)
def test_a_resume_with_nothing_left_to_do_says_why_and_starts_nothing(
    world: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], is_over: bool
) -> None:
    made_run(data={"epochs": 2})(world)
    run_dir = world / "runs" / "t"
    (run_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    note_end(run_dir, "the data ended after 1 steps")
    folder = checkpoint_dir.folder_of(run_dir / "checkpoints", 1)
    folder.mkdir(parents=True)
    (folder / checkpoint_dir.MARKER).touch()
    arguments = [str(world / "recipe.toml"), "--resume", *(more or ("--data.epochs", "2"))]
    arguments += ["--data.epochs", "2"] if "--from-step" in more else []
    if is_over:
        assert launch.main(arguments) == 0
        assert "finished, the data ended after 1 steps; " in capsys.readouterr().out
    else:
        with pytest.raises(Started):
            launch.main(arguments)
