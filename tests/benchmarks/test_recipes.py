"""The table of the recipes: which runs are missing in its record, and what counts as reached."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.demo.arithmetic import sums
from olmorl.deploy.demo.problem import write
from olmorl.deploy.demo.settings import DemoSettings

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def recipes() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("measure", "recipes"):
            spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        yield module


def row(recipe: str, seed: int, held_out: float, code: int = 0, steps: int = 25) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "seed": seed,
        "asked_steps": steps,
        "exit": code,
        "run_s": 60.0,
        "held_out": [0.1, held_out],
        "reward": 0.5,
    }


def test_all_recipes_are_there_and_take_the_same_steps(recipes: ModuleType) -> None:
    names = recipes.recipes(["*"])
    assert names[0] == "demo" and {"lora", "agent", "distillation", "objectives/ppo", "ablation/with_kl"} <= set(names)
    for name in names:
        loaded = config.load(recipes.RECIPES / f"{name}.toml", [("schedule.steps", str(recipes.STEPS))])
        assert loaded.learner.warmup_steps < recipes.STEPS
    two = config.load(recipes.RECIPES / "distillation_two.toml").distillation.teachers
    assert [(str(teacher.url)[-7:], teacher.sources) for teacher in two.values()] == [
        ("8100/v1", ["short.jsonl"]),
        ("8101/v1", ["long.jsonl"]),
    ]
    demo = config.load(recipes.RECIPES / "distillation.toml")
    assert demo.longest_sample + 1 == recipes.TEACHER_TOKENS


def test_what_the_record_has_is_not_run_again(recipes: ModuleType) -> None:
    rows = [row("demo", 0, 0.9), row("lora", 0, 0.0, code=1), row("demo", 1, 0.9, steps=50)]
    assert recipes.missing(rows, ["demo", "lora"], [0, 1], 25) == [("demo", 1), ("lora", 1)]
    assert recipes.missing([], ["demo", "lora"], [0, 1], 25) == [("demo", 0), ("lora", 0), ("demo", 1), ("lora", 1)]


def test_the_problems_are_split_as_the_recipe_of_two_teachers_says(recipes: ModuleType, tmp_path: Path) -> None:
    """The recipe shows the same split by `grep`."""
    cache = tmp_path / "cache" / "sums-1"
    cache.mkdir(parents=True)
    write(cache / "train.jsonl", islice(sums(0, DemoSettings().terms), 50))
    made = recipes.files_by_terms(["short.jsonl", "long.jsonl"], tmp_path)
    text = (recipes.RECIPES / "distillation_two.toml").read_text(encoding="utf-8")
    patterns = re.findall(r"grep -E '(.*)' runs", text)
    rows = (cache / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(patterns) == 2
    for file, pattern in zip(made, patterns, strict=True):
        expected = [row for row in rows if re.search(pattern, row)]
        assert Path(file).read_text(encoding="utf-8").splitlines() == expected and len(expected) > 10


def test_a_failed_run_counts_as_0(recipes: ModuleType) -> None:
    made = recipes.table([row("demo", 0, 0.9), row("demo", 1, 0.75, code=1), row("lora", 0, 0.7)])
    columns = [list(column.cells) for column in made.columns]
    assert columns[0] == ["demo", "lora"]
    assert columns[2] == ["0.450", "0.700"] and columns[3] == ["0.000", "0.700"]
    assert columns[-1] == ["1 of 2", "1 of 1"]
    assert "after 25 steps" in str(made.title)


def test_a_measurement_goes_on_where_it_was(
    recipes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written after each run, so a stop costs the run that was under way."""
    began: list[tuple[str, int]] = []

    def run(name: str, seed: int, steps: int, scratch: Path) -> dict[str, Any]:
        began.append((name, seed))
        if len(began) == 2:
            raise KeyboardInterrupt
        return row(name, seed, 0.9, steps=steps)

    monkeypatch.setattr(recipes, "run", run)
    words = ["--only", "demo", "lora", "--seeds", "0", "--scratch", str(tmp_path), "--json", str(tmp_path / "a.json")]
    with pytest.raises(KeyboardInterrupt):
        recipes.main(words)
    assert recipes.main(words) == 0
    assert began == [("demo", 0), ("lora", 0), ("lora", 0)]
    assert [each["recipe"] for each in json.loads((tmp_path / "a.json").read_text())["rows"]] == ["demo", "lora"]
