"""A folder gives the rows of one split, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from olmorl.errors import DataError
from olmorl.learner.data.readers import read


def folder(tmp_path: Path, *names: str) -> Path:
    """Files with one row each, whose prompt is the name of the file."""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"prompt": name}) + "\n")
    return tmp_path


def prompts(path: Path, split: str = "train", held_out: bool = False) -> list[str]:
    return [values["prompt"] for _, values in read(str(path), split, columns=False, held_out=held_out)]


TRAIN = [
    ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"),
    ("train.jsonl", "test.jsonl"),
    ("TRAIN.JSONL", "Test.jsonl", "DEV.jsonl"),
    ("train.jsonl", "dev.jsonl"),
    ("gsm8k_train.jsonl", "gsm8k_test.jsonl"),
    ("train.json", "test.json", "tokenizer.json"),
    ("data/train/a.jsonl", "data/train/b.jsonl", "data/validation/a.jsonl", "data/test/a.jsonl"),
    ("data/train-00000-of-00001.jsonl", "data/validation-00000-of-00001.jsonl"),
    ("train/1.jsonl", "train/2.jsonl", "eval/1.jsonl"),
    ("training.jsonl", "evaluation.jsonl", ".cache/other.jsonl"),
    ("train_sft-00000-of-00001.jsonl", "test_sft-00000-of-00001.jsonl"),
    ("trainset.jsonl", "testset.jsonl"),
    ("traindata.jsonl", "held_out.jsonl"),
    ("gsm8kTrain.jsonl", "gsm8kTest.jsonl"),
    ("mathTrainSplit-1.jsonl", "mathHoldout-1.jsonl"),
]


@pytest.mark.parametrize("names", TRAIN)
def test_only_the_rows_of_the_split_are_trained_on(tmp_path: Path, names: tuple[str, ...]) -> None:
    there = folder(tmp_path, *names)
    found = prompts(there)
    assert found == sorted(name for name in names if "train" in name.lower()), "each train file once, and no other"


def test_another_split_is_chosen_by_its_usual_names(tmp_path: Path) -> None:
    there = folder(tmp_path, "train.jsonl", "dev.jsonl", "test.jsonl")
    assert prompts(there, "validation") == prompts(there, "dev") == ["dev.jsonl"]
    with pytest.raises(DataError, match=r"data.split is 'test', and the splits there are train"):
        prompts(folder(tmp_path / "other", "train.jsonl"), "test")
    own = folder(tmp_path / "own", "easy-00000-of-00001.jsonl", "hard-00000-of-00001.jsonl")
    assert prompts(own, "hard") == ["hard-00000-of-00001.jsonl"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("test-00000-of-00001.jsonl",), "data.split is 'train', and the splits there are test: set data.split"),
        (("validation-0.jsonl", "dev.jsonl"), "the splits there are validation"),
        (("rows.jsonl", "test.jsonl"), "the split of rows.jsonl is not clear, and other files are of the splits test"),
        (("train.jsonl", "more.jsonl"), "the split of more.jsonl is not clear"),
        (("train_test.jsonl", "train.jsonl"), "the split of train_test.jsonl is not clear"),
        (("main/train.jsonl", "socratic/train.jsonl"), "several data sets, in the folders main, socratic: name one"),
        (("rows.jsonl", "old/rows.jsonl"), r"several data sets, in the folders \., old"),
        (
            ("cot-00000-of-00001.jsonl", "tir-00000-of-00001.jsonl"),
            "data.split is 'train', and the splits there are cot and tir: set data.split",
        ),
        (("mathtrain-0-of-1.jsonl", "mathtest-0-of-1.jsonl"), "the splits there are mathtest and mathtrain"),
        (("notes.txt", "model.json"), "holds no .jsonl and no .parquet"),
    ],
)
def test_what_is_not_clear_is_refused(tmp_path: Path, names: tuple[str, ...], says: str) -> None:
    with pytest.raises(DataError, match=says):
        prompts(folder(tmp_path, *names))


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ("  data_files:\n  - split: train\n    path: a.csv\n  - split: test\n    path: b.csv\n", "test and train"),
        ("- config_name: main\n  data_files: a.csv\n- config_name: diamond\n  data_files: b.csv\n", "diamond and main"),
        ("- config_name: default\n  data_files:\n  - split: train\n    path: '*.jsonl'\n", ""),
    ],
)
def test_parts_that_only_the_card_of_a_clone_names_are_not_mixed(tmp_path: Path, card: str, says: str) -> None:
    there = folder(tmp_path, "a.jsonl", "b.jsonl")
    (there / "README.md").write_text(f"---\nconfigs:\n{card}---\n# A data set\n")
    if not says:
        assert prompts(there) == ["a.jsonl", "b.jsonl"]
        return
    with pytest.raises(DataError, match=rf"README.md has the parts {says}, .* name the files"):
        prompts(there)


def test_an_evaluation_set_is_what_is_not_trained_on(tmp_path: Path) -> None:
    assert prompts(folder(tmp_path / "two", "train.jsonl", "test.jsonl"), held_out=True) == ["test.jsonl"]
    assert prompts(folder(tmp_path / "one", "test-1.jsonl", "test-2.jsonl"), held_out=True) == [
        "test-1.jsonl",
        "test-2.jsonl",
    ]
    assert prompts(folder(tmp_path / "rows", "a.jsonl"), held_out=True) == ["a.jsonl"]
    parts = ["part-0-of-2.jsonl", "part-1-of-2.jsonl"]
    assert prompts(folder(tmp_path / "parts", *parts)) == parts
    with pytest.raises(DataError, match="it has the splits test and train and validation: name the files"):
        prompts(folder(tmp_path / "three", "train.jsonl", "dev.jsonl", "test.jsonl"), held_out=True)


def saved(**splits: list[dict[str, Any]]) -> datasets.DatasetDict:
    return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})


def test_a_saved_data_set_is_read_by_split(tmp_path: Path) -> None:
    both = saved(train=[{"prompt": "a", "other": 1}], test=[{"prompt": "b", "other": 2}])
    both.save_to_disk(tmp_path / "both")
    both["test"].save_to_disk(tmp_path / "alone")
    assert prompts(tmp_path / "both") == ["a"]
    assert prompts(tmp_path / "both", held_out=True) == prompts(tmp_path / "alone") == ["b"]
    assert list(read(str(tmp_path / "both"), "train", columns=False)) == [(f"{tmp_path}/both:1", {"prompt": "a"})]
    with pytest.raises(DataError, match=r"data.split is 'validation', and the splits there are test and train"):
        prompts(tmp_path / "both", "validation")


def test_a_saved_data_set_that_is_damaged_is_named(tmp_path: Path) -> None:
    saved(train=[{"prompt": "a"}])["train"].save_to_disk(tmp_path / "set")
    (shard,) = (tmp_path / "set").glob("*.arrow")
    shard.write_bytes(b"not arrow")
    with pytest.raises(DataError, match="set: not readable as a saved data set"):
        prompts(tmp_path / "set")
