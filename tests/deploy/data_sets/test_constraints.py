"""Composed prompts: the verifier reads every label, the words name every parameter, and the seed repeats them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.data_sets.constraints import LANGUAGES, WORDS, _parameters, _said, wordings
from olmorl.deploy.prepare_data import main
from olmorl.learner.data.readers import layout
from olmorl.verifiers.instructions import ifeval
from olmorl.verifiers.instructions.constraint_table import find
from olmorl.verifiers.instructions.ifbench import train
from olmorl.verifiers.instructions.label_reader import read
from olmorl.verifiers.instructions.texts.language import language_code


def composed(tmp_path: Path, number: int, *words: str) -> list[dict[str, Any]]:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        "".join(json.dumps({"prompt": f"Tell me about number {n}.", "level": n}) + "\n" for n in range(number))
    )
    assert main(["constraints", "--input", str(source), "-o", str(out), "--force", *words]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_the_table_has_every_constraint_of_both_training_sets() -> None:
    tables = (ifeval.TABLE, train.TABLE)
    assert set(wordings()) == {each.id for table in tables for each in table} and len(wordings()) == 54
    assert all(language_code(code) for code in LANGUAGES) and len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize("name", wordings())
def test_the_words_name_every_parameter(name: str) -> None:
    rng = random.Random(0)
    for _ in range(20):
        given = _parameters(name, "Write about the sea, please.", rng.sample(WORDS, len(WORDS)), rng)
        assert find(name).bind(given) is not None
        said = _said(wordings()[name], given)
        for parameter, value in given.items():
            for one in value if isinstance(value, list) else [value]:
                assert parameter == "prompt_to_repeat" or str(one) in said


def test_up_to_five_constraints_that_go_together(tmp_path: Path) -> None:
    rows = composed(tmp_path, 400, "--keep", "level")
    numbers, table = Counter[int](), wordings()
    for number, row in enumerate(rows):
        candidate = layout(row, None, False).labelled()
        assert candidate.datasets == ("ifeval",)
        names = [name for name, _ in read(candidate.ground_truths[0])]
        numbers[len(names)] += 1
        assert len(set(names)) == len(names)
        assert all(table[a].goes_with(table[b]) for a in names for b in names if a != b)
        assert row["messages"][-1]["content"] == f"Tell me about number {number}. {row['constraint']}"
        assert row["level"] == number
    assert set(numbers) == {1, 2, 3, 4, 5} and min(numbers.values()) > 40


def test_the_seed_repeats_them_whatever_stands_around(tmp_path: Path) -> None:
    rows = composed(tmp_path, 30)
    assert composed(tmp_path, 10) == rows[:10]
    assert composed(tmp_path, 30, "--seed", "1") != rows
    assert all(
        json.loads(row["ground_truth"])["instruction_id"][1:] == [] for row in composed(tmp_path, 30, "--most", "1")
    )
