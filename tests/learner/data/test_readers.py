from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl.errors import DataError
from olmorl.learner.data.readers import UNLABELLED, Labelled, Problem, Spec, layout, parse_spec, read


def label(values: dict[str, Any], default: str | None, optional: bool, problem: Problem | None) -> Labelled:
    return layout(values, default, optional).labelled(problem)


def only_numbers(dataset: str, truth: Any) -> str | None:
    return None if isinstance(truth, str) and truth.isdigit() else f"{truth!r} is no number for {dataset}"


def test_a_weight_follows_the_last_colon_and_a_path_that_exists_wins(tmp_path: Path) -> None:
    odd = tmp_path / "set:2"
    odd.touch()
    assert parse_spec("org/name:0.25") == Spec("org/name", 0.25)
    assert parse_spec("org/name") == Spec("org/name", None)
    assert parse_spec(str(odd)) == Spec(str(odd), None)
    assert parse_spec(f"{odd}:3") == Spec(str(odd), 3.0)
    with pytest.raises(DataError, match="over 0"):
        parse_spec("org/name:0")


def test_json_lines_are_read_with_their_line_numbers(jsonl: Callable[..., Path]) -> None:
    path = jsonl({"prompt": "a"}, None, {"prompt": "b"})
    assert list(read(str(path), "train", columns=False)) == [
        (f"{path}:1", {"prompt": "a"}),
        (f"{path}:3", {"prompt": "b"}),
    ]


@pytest.mark.parametrize("line", ['{"prompt": ', "[1, 2]", b"\xff\xfe{}".decode("latin-1")])
def test_a_malformed_line_is_an_error_with_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line.encode("latin-1"))
    with pytest.raises(DataError, match=r"bad\.jsonl:2: not "):
        list(read(str(path), "train", columns=False))


@pytest.mark.parametrize("name", ["nowhere/rows.jsonl", "/nowhere/rows", "nowhere.parquet"])
def test_a_missing_file_is_an_error_and_never_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        list(read(name, "train", columns=False))


def test_parquet_rows_have_only_the_requested_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    rows = [{"prompt": [{"role": "user", "content": str(i)}], "ground_truth": str(i), "extra": i} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert [values for _, values in read(str(path), "train", columns=True)] == rows
    place, values = list(read(str(path), "train", columns=False))[2]
    assert (place, sorted(values)) == (f"{path}:3", ["ground_truth", "prompt"])


def test_a_file_that_is_not_parquet_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("not parquet at all")
    with pytest.raises(DataError, match=r"rows\.parquet:1: not readable as Parquet"):
        list(read(str(path), "train", columns=True))


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}))
    assert [values["prompt"] for _, values in read(str(tmp_path), "train", columns=False)] == ["a", "b"]


def test_the_ai2_layout_with_several_verifiers() -> None:
    turns = [{"role": "user", "content": "Say 4."}, {"role": "assistant", "content": "4"}]
    row = {"messages": turns, "ground_truth": ["4", "5"], "dataset": ["math", "ifeval"], "id": None, "level": 3}
    labelled = label(row, None, False, None)
    assert labelled.messages == turns[:1]
    assert labelled.datasets == ("math", "ifeval")
    assert labelled.ground_truths == ("4", "5")
    assert labelled.columns == {"level": 3}


def test_the_flattened_prompt_of_the_published_sets_loses_its_prefix() -> None:
    row = {"prompt": "user: 2+2?", "ground_truth": ["4"], "dataset": ["math"]}
    assert label(row, None, False, None).messages == "2+2?"
    assert label({"prompt": "user: 2+2?"}, None, True, None).messages == "user: 2+2?"


def test_the_verl_layout() -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7},
    }
    labelled = label(row, None, False, None)
    assert (labelled.datasets, labelled.ground_truths) == (("math",), ("4",))
    assert labelled.columns["extra_info"] == {"index": 7}
    assert label(row, "other", False, None).datasets == ("other",)
    with pytest.raises(ValueError, match="default_verifier"):
        label(row | {"data_source": "unheard-of"}, None, False, None)
    for source in ("unheard-of", "openai/gsm8k"):  # in verl a function replaces the verifier
        for_functions = label(row | {"data_source": source}, None, True, None)
        assert (for_functions.datasets, for_functions.columns["ground_truth"]) == ((), "4")
    assert label(row, "math", True, None).datasets == ("math",)


def test_a_column_that_nobody_reads_may_be_no_text() -> None:
    row = {"prompt": "2+2?", "dataset": "math", "ground_truth": "4", "note": {"\ud83d": 1}}
    assert label(row, None, False, None).messages == "2+2?"
    with pytest.raises(ValueError, match="note is not Unicode text"):
        label(row, None, True, None)


def test_the_trl_layout_needs_user_functions() -> None:
    row = {"prompt": "2+2?", "answer": "4"}
    labelled = label(row, None, True, None)
    assert labelled == ("2+2?", (), (), {"answer": "4"})
    labelled = label(row | {"ground_truth": 4}, None, True, None)
    assert labelled == ("2+2?", (), (), {"answer": "4", "ground_truth": 4})
    with pytest.raises(ValueError, match="ground_truth is missing"):
        label(row, None, False, None)


@pytest.mark.parametrize(
    ("truth", "expected"),
    [(42, "42"), (["42"], "42"), ("42", "42")],
)
def test_one_verifier_takes_a_number_or_a_wrapped_label(truth: Any, expected: str) -> None:
    row = {"prompt": "?", "dataset": "math", "ground_truth": truth}
    assert label(row, None, False, only_numbers).ground_truths == (expected,)


def test_a_list_that_is_itself_the_label_is_kept_whole() -> None:
    def wants_list(dataset: str, truth: Any) -> str | None:
        return None if isinstance(truth, list) else "no list"

    row = {"prompt": "?", "dataset": "code", "ground_truth": ["assert f(1)"]}
    assert label(row, None, False, wants_list).ground_truths == (["assert f(1)"],)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": None}, "no prompt"),
        ({"prompt": "  "}, "empty"),
        ({"prompt": 3}, "neither a list"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "asks nothing"),
        ({"prompt": [{"role": "user"}]}, "no content"),
        ({"ground_truth": None}, "ground_truth is missing"),
        ({"ground_truth": float("nan")}, "ground_truth is missing"),
        ({"ground_truth": ""}, "empty"),
        ({"ground_truth": "x"}, "no number"),
        ({"ground_truth": ["1", "2"], "dataset": ["math", "math", "math"]}, "3 verifiers"),
        ({"dataset": None}, "no verifier"),
        ({"dataset": 3}, "neither a verifier's name"),
        ({"prompt": "2+2? \ud83d"}, "prompt is not Unicode text"),
        ({"prompt": [{"role": "user", "content": "\udcff"}]}, "prompt is not Unicode text"),
        ({"ground_truth": ["4\ude00"]}, "ground_truth is not Unicode text"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(change: dict[str, Any], reason: str) -> None:
    row = {"prompt": "2+2?", "dataset": "math", "ground_truth": "4"} | change
    with pytest.raises(ValueError, match=reason):
        label(row, None, False, only_numbers)


@pytest.mark.parametrize(
    ("published", "verifier"),
    [
        ("gsm8k", "gsm8k"), ("MATH", "math"), ("math", "math"), ("ifeval", "ifeval"), ("IFEval", "ifeval"),
        ("code", "code"), ("code_stdio", "code_stdio"), ("general-quality", "general-quality"),
        ("general-quality_ref", "general-quality_ref"), ("general_quality_ref", "general-quality_ref"),
        ("string_matcher", "string_match"), ("string_f1", "f1"),
        ("strict_math", "math"), ("unheard-of", "unheard-of"),
    ],
)  # fmt: skip
def test_names_of_verifiers_in_published_sets(published: str, verifier: str) -> None:
    row = {"prompt": "?", "dataset": [published], "ground_truth": ["4"]}
    assert label(row, None, False, None).datasets == (verifier,)


@pytest.mark.parametrize(
    ("source", "verifier"),
    [
        ("openai/gsm8k", "math"), ("lighteval/MATH", "math"), ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("math_dapo", "math"), ("aime2024", "math"), ("numina_olympiads", "math"), ("hiyouga/geometry3k", "math"),
        ("codecontests", "code_stdio"), ("apps", "code_stdio"), ("taco", "code_stdio"), ("google/IFEval", "ifeval"),
    ],
)  # fmt: skip
def test_data_sources_of_verl(source: str, verifier: str) -> None:
    row = {"prompt": "?", "data_source": source, "reward_model": {"ground_truth": "4"}}
    assert label(row, None, False, None).datasets == (verifier,)


def test_a_label_of_its_own_goes_before_a_column_reward_model_of_any_kind() -> None:
    row = {"prompt": "?", "ground_truth": "4", "dataset": "math", "reward_model": "the name of a model"}
    assert label(row, None, False, None).ground_truths == ("4",)


def test_a_reward_model_column_may_be_json_text() -> None:
    row = {"prompt": "?", "data_source": "aime", "reward_model": json.dumps({"ground_truth": "4"})}
    assert label(row, None, False, None).ground_truths == ("4",)
    with pytest.raises(ValueError, match="not JSON"):
        label(row | {"reward_model": "{"}, None, False, None)


def test_a_candidate_tells_every_label_that_may_be_asked_about() -> None:
    row = {"prompt": "?", "dataset": "code", "ground_truth": ["assert f(1)"]}
    assert layout(row, None, False).labels == [("code", "assert f(1)"), ("code", ["assert f(1)"])]
    assert layout({"prompt": "?", "answer": 1}, None, True).labels == []


def test_a_row_without_a_prompt_may_be_wanted() -> None:
    row = {"dataset": "math", "ground_truth": "4"}
    assert layout(row, None, False, prompted=False).messages == ""
    with pytest.raises(ValueError, match="asks nothing"):
        layout(row | {"messages": []}, None, False, prompted=False)


def test_content_in_text_parts_is_text() -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "3 + 4?", "image_url": None}]
    row = {"messages": [{"role": "user", "content": parts}], "ground_truth": "7", "dataset": "math"}
    assert label(row, None, False, None).messages == [{"role": "user", "content": "What is\n3 + 4?"}]


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 3}}}


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (
            {"content": [{"type": "image_url", "image_url": {}}]},
            "turn 2 of messages has a part of the type 'image_url'",
        ),
        ({"content": [{"type": "text", "text": "?"}, {"type": "image"}]}, "type 'image'.*leave rows with images"),
        ({"content": [{"type": "input_audio"}]}, "type 'input_audio'"),
        ({"content": [{"type": "text", "text": None}]}, "only parts of the type 'text', with a text"),
        ({"content": ["plain"]}, "type 'str'"),
        ({"content": None, "tool_calls": [CALL]}, "turn 2 of messages has tool_calls and no content .*OpenAI's layout"),
        ({"from": "human", "value": "?", "role": None}, "ShareGPT's layout: name the column messages"),
        ({"content": 3}, "turn 2 of messages has no role or no content"),
    ],
)
def test_a_turn_of_another_layout_is_named_with_what_to_do(turn: dict[str, Any], reason: str) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user"} | turn]
    with pytest.raises(ValueError, match=reason):
        label({"messages": turns, "ground_truth": "7", "dataset": "math"}, None, False, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"conversations": [{"from": "human", "value": "?"}]}, "but conversations .ShareGPT's layout: name the column"),
        ({"instruction": "?", "input": "", "output": "4"}, "but instruction, input, output .Alpaca's layout: join"),
        ({"chosen": "a", "rejected": "b"}, "pairs of preferred answers"),
        ({"question": "?", "answer": "4"}, "olmorl-data jsonl --input FILE --question question --answer COLUMN -o OUT"),
        ({"frage": "?"}, "neither a column messages nor a column prompt, but frage$"),
    ],
)
def test_a_row_of_another_layout_is_named_with_what_to_do(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        label(row, "math", False, None)


NOTHING: list[dict[str, Any]] = [{}, {"ground_truth": None}, {"ground_truth": ""}, {"ground_truth": []}]


@pytest.mark.parametrize("name", sorted(UNLABELLED))
@pytest.mark.parametrize("truth", [*NOTHING, {"ground_truth": [None]}, {"ground_truth": [""]}, {"ground_truth": "any"}])
def test_verifiers_that_read_no_label_need_none(name: str, truth: dict[str, Any]) -> None:
    labelled = label({"prompt": "?", "dataset": name} | truth, None, False, None)
    assert (labelled.datasets, len(labelled.ground_truths)) == ((name,), 1)
    assert label({"prompt": "?"} | truth, name, False, None) == labelled._replace(columns={})


@pytest.mark.parametrize("truth", NOTHING)
def test_several_of_them_need_none_either(truth: dict[str, Any]) -> None:
    row = {"prompt": "?", "dataset": ["format", "tag_count"]} | truth
    assert len(label(row, None, False, None).ground_truths) == 2


@pytest.mark.parametrize("nothing", [None, "", []])
def test_beside_one_that_reads_a_label(nothing: Any) -> None:
    row = {"prompt": "?", "dataset": ["math", "format"]}
    assert label(row | {"ground_truth": ["4", nothing]}, None, False, None).ground_truths == ("4", nothing)
    with pytest.raises(ValueError, match="the label for math is empty"):
        label(row | {"ground_truth": [nothing, "4"]}, None, False, None)
    with pytest.raises(ValueError, match=r"no usable label"):
        label(row | {"ground_truth": nothing}, None, False, None)


@pytest.mark.parametrize("name", ["math", "f1", "code", "ifeval", "general-quality_ref", "overlong"])
@pytest.mark.parametrize("truth", NOTHING)
def test_the_others_need_one(name: str, truth: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no usable label"):
        label({"prompt": "?", "dataset": name} | truth, None, False, None)


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("space", ["", "\n  "])
def test_an_array_of_objects_is_read_as_lines_are(tmp_path: Path, suffix: str, space: str) -> None:
    items = [{"prompt": "a", "n": 1}, {"prompt": "b", "n": None}]
    path = tmp_path / f"rows{suffix}"
    path.write_text(space + json.dumps(items, indent=2 if space else None))
    assert list(read(str(path), "train", columns=True)) == [(f"{path}:1", items[0]), (f"{path}:2", items[1])]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'[{"prompt": "a"}, 3]', r"element 2: not a JSON object but a int"),
        (b'[{"prompt": "a"}', r"rows\.json: not JSON"),
        (b'{"prompt": "a"}\n[1]\n', r":2: not a JSON object but a list"),
        (b'{\n"prompt": "a"\n}', r":1: not JSON.*one JSON object a line"),
        (b"\xff\xfe\x00\x01" * 50, "not JSON|not UTF-8 text"),
        (b"\x80\x81" * 50, "not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "rows.json: it is binary, and of no known format"),
        (b'{"prompt": "\xff"}', "not UTF-8 text"),
    ],
)
def test_json_of_another_form_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        list(read(str(path), "train", columns=True))
