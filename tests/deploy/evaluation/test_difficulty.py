"""`olmorl-data difficulty`: rates are a count of the answers, the filter leaves what it says, kills lose nothing."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.prepare_data import main
from olmorl.learner.data.loader import Loader, open_tokenizer, training_sources
from olmorl.ports import Sampling
from tests.deploy.evaluation.text_engine import TextEngine, answers_after_kills, model_folder, sum_or_near


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe with two sources, one of them with a weight, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "model")
    for name, first in (("few", 0), ("many", 100)):
        rows = [{"prompt": f"What is {first + n}+1?", "ground_truth": str(first + n + 1), "dataset": "math", "id": n}
                for n in range(10 if name == "few" else 40)]  # fmt: skip
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("recipe.toml").write_text(
        '[model]\npath = "model"\n[data]\ntrain = ["few.jsonl:2", "many.jsonl"]\nsystem_prompt = "Add."\n'
        "[sampling]\nmax_tokens = 40\n[actors]\nmax_running = 2\n"
    )
    return "recipe.toml"


def some_always(model: str, asked: str, sampling: Sampling) -> str:
    """Every third sum is always right."""
    first = int(asked.split("What is ")[1].split("+")[0])
    return f"It is {first + 1}." if first % 3 == 0 else sum_or_near(model, asked, sampling)


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_rates_are_a_count_and_the_filter_takes_the_easy_ones_out(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wiring, "engine", lambda settings, core, name="": TextEngine("model", some_always))
    assert main(["difficulty", recipe, "-o", "out", "--min-pass-rate", "0.01"]) == 0
    shown = capsys.readouterr().out
    answers = load("out/answers.jsonl")
    solved, asked = Counter[str](), Counter[str]()
    for row in answers:
        asked[row["row"]] += 1
        solved[row["row"]] += row["completion"] == f"It is {row['ground_truth'][0]}."
    assert len(answers) == 50 * 8 and set(asked.values()) == {8}
    rates = {row["row"]: row for row in load("out/pass_rates.jsonl")}
    assert {name: row["pass_rate"] for name, row in rates.items()} == {name: solved[name] / 8 for name in asked}
    assert all(row["num_samples"] == 8 and row["reward_mean"] == row["pass_rate"] for row in rates.values())
    for name in ("few", "many"):
        kept = load(f"out/{name}.jsonl")
        within = [
            row for number, row in enumerate(load(f"{name}.jsonl"), 1) if 1 <= solved[f"{name}.jsonl:{number}"] <= 5
        ]
        assert [{key: row[key] for key in within[0]} for row in kept] == within
        assert 0 < len(kept) < (10 if name == "few" else 40)
    # The line for the recipe keeps the weights, and a run reads these rows.
    line = tomllib.loads(shown.splitlines()[-1].partition("[data] ")[2])
    assert line == {"train": ["out/few.jsonl:2", "out/many.jsonl"]}
    settings = config.build({"model": {"path": "model"}, "data": line})
    loader = Loader(settings.data, open_tokenizer(settings.model), settings.verifiers)
    assert [source.weight for source in training_sources(loader, settings.data)] == [2, None]
    assert loader.report.refused == 0


def test_three_kills_lose_nothing_and_nothing_is_sampled_twice(recipe: str, tmp_path: Path) -> None:
    words = ["DATA", "difficulty", recipe, "-o", "out", "--resume"]
    made = answers_after_kills(words, tmp_path / "log", tmp_path / "out" / "answers.jsonl.part", 80)
    assert len(made) == 400 and set(made.values()) == {1}
    assert len(load("out/answers.jsonl")) == 400 and len(load("out/pass_rates.jsonl")) == 50


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-pass-rate", "0.9"], "--min-pass-rate 0.9 is over --max-pass-rate 0.625: no prompt would be left"),
        (["--resume", "--force"], "--resume goes on with the answers and --force replaces them"),
        (["--episodes.environment", "a:B"], "difficulty: episodes.environment = 'a:B' plays several turns"),
        (["--run.mode", "simulated"], "a simulated run has no model"),
        (["--data.train", '["a/few.jsonl", "few.jsonl"]'], "few.jsonl would be written twice"),
        (["--data.train", "[]"], "data.train names no data set"),
    ],
)
def test_a_mistake_is_said_before_an_engine_starts(
    recipe: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a").mkdir()
    Path("a/few.jsonl").write_bytes(Path("few.jsonl").read_bytes())
    assert main(["difficulty", recipe, "-o", "out", *words]) == 2
    assert message in capsys.readouterr().err and not Path("out").exists()
