"""Rows by source: counts are what was asked, the seed chooses, and mistakes say what is there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.data_sets.mixing import DOLCI_THINK_RL, quotas
from olmorl.deploy.prepare_data import main
from olmorl.learner.data.readers import layout

LABELS: dict[str, tuple[list[str], list[str]]] = {
    "IF_multi": (["ifeval"], ["[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]"]),
    "code": (["code"], ['["assert f() == 1"]']),
    "tulu": (["general-quality_ref"], ["A reference."]),
    "wildchat": (["general-quality"], [""]),
}
"""Verifier and label in Dolci's layout, by a part of the source's name; mathematics for all others."""


def dolci(path: Path, each: int) -> str:
    """Rows in the published columns of Dolci-Think-RL, the same number of each source, in turns."""
    rows: list[dict[str, Any]] = []
    for number in range(each):
        for source in DOLCI_THINK_RL:
            dataset, label = next((LABELS[part] for part in LABELS if part in source), (["math"], [str(number)]))
            of_verl = "DAPO" in source  # the table has these columns for all sources
            rows.append({"prompt": f"user: Question {number} of {source}", "ground_truth": label, "dataset": dataset,
                         "original_dataset": source, "passrate": 0.25, "input_ids_prompt": [1, 2, 3],
                         "data_source": "math_dapo" if of_verl else None,
                         "reward_model": {"ground_truth": label[0] if of_verl else None, "style": None}})  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_published_counts_are_those_of_the_card() -> None:
    assert sum(DOLCI_THINK_RL.values()) == 102_014 and len(DOLCI_THINK_RL) == 15


def test_dolci_by_source_with_weights_and_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = dolci(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    words = ["dolci-think-rl", "--input", source, "-o", str(out), "--take", "acecoder=7", "--weight", "omega=0.5",
             "IF_multi=0", "--rows", "115", "--keep", "passrate"]  # fmt: skip
    assert main(words) == 0
    made = load(out)
    counts = Counter(row["original_dataset"] for row in made)
    names = {part: next(name for name in DOLCI_THINK_RL if part in name) for part in ("acecoder", "omega", "IF_multi")}
    assert (counts[names["acecoder"]], counts[names["omega"]], counts[names["IF_multi"]]) == (7, 4, 0)
    assert {number for name, number in counts.items() if name not in names.values()} <= {8, 9} and len(made) == 115
    assert set(made[0]) == {"prompt", "ground_truth", "dataset", "original_dataset", "passrate", "reward_model"}
    assert all(layout(row, None, False).labelled() for row in made)
    shown = capsys.readouterr().out
    assert "(published: 29,813)" in shown and "are a reader's count" in shown and "Olmo 3 has 104,869: math" in shown
    first = out.read_text()
    assert main([*words, "--force"]) == 0 and out.read_text() == first
    assert main([*words, "--force", "--seed", "1"]) == 0 and out.read_text() != first
    assert Counter(row["original_dataset"] for row in load(out)) == counts


def test_an_unusable_row_is_reported_and_takes_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = Path(dolci(tmp_path / "in.jsonl", 3)), tmp_path / "out.jsonl"
    omega = next(name for name in DOLCI_THINK_RL if "omega" in name)
    broken = {"prompt": " ", "ground_truth": ["1"], "dataset": ["math"], "original_dataset": omega}
    source.write_text(json.dumps(broken) + "\n" + source.read_text())
    assert main(["mix", "--input", str(source), "-o", str(out), "--take", "omega=3"]) == 0
    assert Counter(row["original_dataset"] for row in load(out))[omega] == 3
    assert f"left out: {source}:1: prompt is empty" in capsys.readouterr().err
    assert main(["mix", "--input", str(source), "-o", str(out), "--take", "omega=4", "--force"]) == 2


def test_without_options_everything_is_taken(tmp_path: Path) -> None:
    source, out = dolci(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    assert main(["mix", "--input", source, "-o", str(out)]) == 0
    assert len(load(out)) == 30


def test_quotas_add_up() -> None:
    counts = {"a": 100, "b": 50, "c": 1}
    assert quotas(counts, {}, {}, None) == counts
    assert quotas(counts, {}, {"a": 0.333}, None) == {"a": 33, "b": 50, "c": 1}
    assert quotas(counts, {"b": 10}, {}, 20) == {"b": 10, "a": 10, "c": 0}
    assert sum(quotas(counts, {}, {"a": 0.1}, 7).values()) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--take", "nemotron=1"], "several sources have this name; there are"),
        (["--take", "omegas=1"], "omegas: no source has this name"),
        (["--take", "omega"], "'omega' is not SOURCE=NUMBER"),
        (["--take", "omega=3"], "has 2 rows, and 3 are asked of it"),
        (["--weight", "omega=-1"], "'omega=-1' is not SOURCE=NUMBER"),
        (["--rows", "31"], "rows, and 3 are asked of it: lower --rows"),
        (["--rows", "1", "--take", "omega=2"], "--rows 1: the sources of --take alone are 2"),
        (["--by", "origin"], "in.jsonl:1: the row has no column origin with its source; name it with --by"),
        (["--keep", "passrte"], "--keep passrte: no row has such a column (did you mean 'passrate'?)"),
    ],
)
def test_a_mistake_says_what_is_there(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = dolci(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    assert main(["mix", "--input", source, "-o", str(out), *words]) == 2
    assert message in capsys.readouterr().err and not out.exists()
