"""`olmorl.run` and `olmorl.verify`, with the functions and rows of a script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from datasets import Dataset, DatasetDict

import olmorl
from olmorl import config
from olmorl.deploy import api
from olmorl.deploy.run_tables import RunTables
from olmorl.errors import ConfigError, DataError, UserError
from olmorl.run_dir import RunFiles
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments
from tests import ten_numbers
from tests.verifiers.environments.test_forked_environments import calls, episode, prompt
from tests.waiting import lives, until

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    {"prompt": "1 + 1?", "ground_truth": "2", "dataset": "math", "completion": "It is \\boxed{2}.", "wanted": 5},
    {
        "prompt": "1 + 2?",
        "ground_truth": "3",
        "dataset": "math",
        "completion": "It is \\boxed{4}.",
        "wanted": np.int64(17),
    },
]
SCRIPT = """
import sys
import olmorl

factor = 0.5

def length(completions, wanted, **columns):
    return [factor * (len(text) == n) for text, n in zip(completions, wanted)]

"""


def simulated(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "run": {"name": "test", "mode": "simulated", "directory": str(folder)},
        "schedule": {"steps": steps, "prompts_per_step": 4, "max_lag": 2},
        "simulation": {"tokens_per_s": 500},
    }


def test_rows_are_scored_by_verifiers_and_by_functions_of_this_process() -> None:
    bonus = 0.25

    def at_17(completions: list[str], wanted: list[int], **_: Any) -> list[float]:
        return [bonus * (n == 17) for _, n in zip(completions, wanted, strict=True)]

    scores = olmorl.verify(ROWS, reward_functions=[at_17])
    assert [score["reward"] for score in scores] == [1.0, 0.25]
    assert [score["solved"] for score in scores] == [True, False]


def test_a_function_of_a_script_is_stored_with_what_it_uses(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT + f"print(olmorl.verify({ROWS[:1]!r}, reward_functions=[length])[0]['reward'])\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["1.0"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([lambda completions: [0.0]], "has no name: write it with `def name"),
        ([3], "has no name"),
        ([max, max], "two have the same name"),
    ],
)
def test_functions_that_cannot_be_used_are_named(functions: list[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        olmorl.verify(ROWS, reward_functions=functions)


@pytest.mark.parametrize(
    ("rows", "says"),
    [([], "no rows"), ([{"a": 1}, {"a": object()}], "row 2: a object cannot"), ([{"a": 1}, 3], "row 2")],
)
def test_rows_that_cannot_be_written_are_named(tmp_path: Path, rows: list[Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        olmorl.run(simulated(tmp_path, 1), dataset=rows)
    assert not (tmp_path / "test").exists()


def test_a_recipe_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.step: unknown key"):
        olmorl.run({"schedule": {"step": 3}})
    with pytest.raises(ConfigError, match="olmorl"):
        olmorl.run({"model": {"path": "x"}}, overrides={"objective.preset": "no"})
    with pytest.raises(ConfigError, match="no such recipe"):
        olmorl.run("missing.toml")
    assert olmorl.Recipe.model_validate(simulated(Path("runs"), 3)).schedule.steps == 3


class Counter:
    def reset(self, **row: Any) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        """
        Adds.

        Args:
            number: How much.
        """
        self.total += number
        return self.total


def totals(environments: list[Any], **_: Any) -> list[float]:
    return [one.total / 10 for one in environments if isinstance(one, Counter)]


def test_an_environment_and_its_reward_function_are_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_command", lambda *_: (0, ""))
    monkeypatch.setattr(api, "read_run", lambda folder: folder)
    olmorl.run(simulated(tmp_path, 3), reward_functions=[totals], environment=Counter, dataset=ROWS)
    recipe = config.load(tmp_path / "test.inputs" / "recipe.toml")

    async def played() -> Any:
        environments = ForkedEnvironments(recipe.episodes, recipe.verifiers)
        await environments.start()
        try:
            world = environments.open()
            await world.reset(prompt(), 0)
            call = calls(("add", {"number": 4}), ("add", {"number": 3}))
            await world.step(call)
            return await world.reward(episode(call))
        finally:
            await environments.stop()

    assert asyncio.run(played())["totals"].reward == 0.7, "the class of the object is the one that the function knows"


@pytest.mark.cluster
def test_a_run_gives_its_tables_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tables = olmorl.run(simulated(tmp_path, 3))
    assert tables.metrics.column("step").to_pylist() == [1, 2, 3]
    assert "step    3/3" in capfd.readouterr().out
    inputs = tmp_path / "test.inputs" / "recipe.toml"
    before = inputs.read_text()
    with pytest.raises(UserError, match="holds a run already"):
        olmorl.run(simulated(tmp_path, 7))
    assert inputs.read_text() == before
    longer = {"schedule.steps": 5}
    with pytest.raises(ConfigError, match="--change"):
        olmorl.run(simulated(tmp_path, 3), overrides=longer, resume=True)
    tables = olmorl.run(simulated(tmp_path, 3), overrides=longer, resume=True, change=True)
    assert tables.metrics.column("step").to_pylist() == [1, 2, 3, 4, 5]


def test_rows_of_this_process_are_training_and_evaluation_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_command", lambda *_: (0, ""))
    monkeypatch.setattr(api, "read_run", lambda folder: folder)
    given = [{"prompt": [{"role": "user", "content": f"{n}?"}], "wanted": n, "level": n / 2} for n in range(9)]
    rows = Dataset.from_list(given)
    held_out = DatasetDict({"low": rows.select(range(2)), "high": rows.select(range(2, 5))})

    def files(entries: list[str]) -> dict[str, list[Any]]:
        named = {entry.rpartition("=")[0]: Path(entry.rpartition("=")[2]) for entry in entries}
        return {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in named.items()}

    olmorl.run(simulated(tmp_path, 3), dataset=rows.to_iterable_dataset(), evaluation=held_out)
    recipe = config.load(tmp_path / "test.inputs" / "recipe.toml")
    assert files(recipe.data.train) == {"": given}
    assert files(recipe.evaluation.data) == {"low": given[:2], "high": given[2:5]}
    olmorl.run(simulated(tmp_path, 3), evaluation=rows)
    assert files(config.load(tmp_path / "test.inputs" / "recipe.toml").evaluation.data) == {"held_out": given}
    with pytest.raises(DataError, match=r"it has several parts \(low, high\); give one of them"):
        olmorl.run(simulated(tmp_path, 1), dataset=held_out)


@pytest.mark.cluster
def test_a_run_hands_over_its_lines_and_stops_when_it_is_told(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []

    def on_step(line: dict[str, Any]) -> bool:
        lines.append(line)
        if line["step"] == 3:  # answers are written behind the steps
            until(lambda: are_made_again(olmorl.read_run(tmp_path / "test"), 2))
        return bool(line["step"] >= 3)

    def are_made_again(tables: RunTables, step: int) -> bool:
        numbers, line = ten_numbers.of_step(tables, step), tables.metrics.to_pylist()[step - 1]
        return bool({name: line[name] for name in numbers} == pytest.approx(numbers))

    tables = olmorl.run(simulated(tmp_path, 1000), on_step=on_step)
    assert all(are_made_again(tables, step) for step in range(1, tables.metrics.num_rows + 1))
    steps = [line["step"] for line in lines]
    assert steps == tables.metrics.column("step").to_pylist() == list(range(1, len(steps) + 1))
    assert 3 <= steps[-1] < 1000 and (tmp_path / "test" / "checkpoints" / f"step_{steps[-1]}" / "complete").exists()

    # A run that goes on hands over its new steps alone; an exception stops it.
    def fails(line: dict[str, Any]) -> None:
        lines.append(line)
        if line["step"] > steps[-1] + 1:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        olmorl.run(simulated(tmp_path, 1000), on_step=fails, resume=True)
    assert [line["step"] for line in lines[len(steps) :]] == [steps[-1] + 1, steps[-1] + 2]
    tables = olmorl.read_run(tmp_path / "test")
    assert set(tables.metrics.column("incarnation").to_pylist()) == {1, 2}
    assert all(are_made_again(tables, step) for step in range(1, tables.metrics.num_rows + 1))
    assert "stopped" in RunFiles(tmp_path / "test").ended.read_text()


def test_a_line_is_handed_over_again_when_an_evaluation_was_added(tmp_path: Path) -> None:
    path, seen = tmp_path / "metrics.jsonl", list[dict[str, Any]]()
    lines = [{"step": n, "incarnation": 1} for n in range(1, 4)]
    new = api._NewLines(path, seen.append)

    def write(*lines: dict[str, Any]) -> list[dict[str, Any]]:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        seen.clear()
        assert not new.look()
        return seen

    assert write(*lines[:2]) == lines[:2]
    assert write(*lines[:2]) == []
    assert write(lines[0], {**lines[1], "eval_a_accuracy": 1}, lines[2]) == [
        {**lines[1], "eval_a_accuracy": 1},
        lines[2],
    ]
    # Steps that another start takes again come again.
    again = [{"step": n, "incarnation": 2} for n in range(2, 4)]
    assert write(lines[0], again[0]) == again[:1] and write(lines[0], *again) == again[1:]
    assert write(lines[0], again[0], {**again[1], "eval_a_accuracy": 1}) == [{**again[1], "eval_a_accuracy": 1}]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    text = f"import olmorl\nprint(olmorl.run({simulated(tmp_path, 1000)!r}).metrics.num_rows, 'rows')\n"
    (tmp_path / "script.py").write_text(text)
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=out, stderr=subprocess.STDOUT)
    yield process
    process.kill()
    process.wait()


def started(tmp_path: Path, process: subprocess.Popen[bytes]) -> psutil.Process:
    """The launcher, once it knows of trained steps."""
    out = tmp_path / "out"
    until(lambda: "step    3/" in out.read_text() or process.poll() is not None)
    assert process.poll() is None, (tmp_path / "out").read_text()
    return psutil.Process(process.pid).children()[0]


@pytest.mark.cluster
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_or_killed_script_leaves_a_run_that_can_go_on(
    tmp_path: Path, script: subprocess.Popen[bytes], asked: signal.Signals
) -> None:
    launcher = started(tmp_path, script)
    os.kill(script.pid, asked)
    script.wait(60)
    until(lambda: not lives(launcher))
    assert "stopped" in RunFiles(tmp_path / "test").ended.read_text()
    assert list(RunFiles(tmp_path / "test").checkpoints.glob("step_*/complete"))
    if asked == signal.SIGINT:
        lines = (tmp_path / "out").read_text().splitlines()
        assert lines[-1].endswith(" rows") and script.returncode == 0, lines[-20:]
