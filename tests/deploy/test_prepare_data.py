from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.data_sets.layouts import KINDS, dapo, gsm8k, last_box, math
from olmorl.deploy.prepare_data import main
from olmorl.learner.data.readers import layout
from tests.deploy.hub_settings import use_hub


def save(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_gsm8k_takes_the_text_after_the_marker() -> None:
    row = {"question": " How many? ", "answer": "He has 2 * 600 = <<2*600=1200>>1200.\n#### 1,200"}
    assert gsm8k(row) == ("How many?", "1200", None, "He has 2 * 600 = 1200.")
    with pytest.raises(ValueError, match="####"):
        gsm8k(row | {"answer": "1200"})


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So \boxed{42}.", "42"),
        (r"First \boxed{1}, then $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\fbox{x^{2}}", "x^{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"$\boxed{1}$, no: $\boxed 5$.", "5"),
        (r"\fbox{1} and $\boxed\frac{1}{2}$", r"\frac{1}{2}"),
    ],
)
def test_the_last_box_is_read_with_its_inner_braces(solution: str, answer: str) -> None:
    assert last_box(solution) == answer
    assert math({"problem": "?", "solution": solution}) == ("?", answer, None, solution)


@pytest.mark.parametrize("solution", ["42", r"\boxed{\frac{1}{2}", r"$\boxed$ 3"])
def test_a_solution_without_a_whole_box_is_unusable(solution: str) -> None:
    with pytest.raises(ValueError, match="box"):
        last_box(solution)


def test_dapo_loses_the_instruction_around_the_problem() -> None:
    prompt = "Solve the following math problem. Answer: $Answer\n\nWhat is 2+2?\n\nUse sums.\n\nRemember: Answer: last."
    row = {"prompt": [{"role": "user", "content": prompt}], "reward_model": {"ground_truth": "4"}}
    assert dapo(row)[:2] == ("What is 2+2?\n\nUse sums.", "4")
    plain = [{"role": "user", "content": "What?\n\nWhy?\n\nHow?"}]
    assert dapo(row | {"prompt": plain}).question == "What?\n\nWhy?\n\nHow?"
    with pytest.raises(ValueError, match="prompt is no list of turns"):
        dapo(row | {"prompt": ["What?"]})


def test_a_set_becomes_rows_that_the_learner_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"problem": "2+2?", "solution": r"\boxed{4}", "level": "Level 1", "type": "Algebra"}
    source = save(tmp_path / "in.jsonl", good, good, good | {"problem": "3?", "solution": "3"})
    out = tmp_path / "out.jsonl"
    assert main(["math", "--input", source, "-o", str(out), "--suffix", " Box it."]) == 0
    (row,) = load(out)
    assert row["messages"] == [{"role": "user", "content": "2+2? Box it."}]
    assert (row["level"], row["type"]) == ("Level 1", "Algebra")
    assert layout(row, None, False).labelled().ground_truths == ("4",)
    printed = capsys.readouterr()
    assert "1 rows; 1 repeated and 1 unusable" in printed.out
    assert f"left out: {source}:3: the solution has no" in printed.err


def test_any_set_by_the_names_of_its_columns(tmp_path: Path) -> None:
    rows = [{"q": f"{i}?", "tests": [f"assert f() == {i}"], "hard": i, "other": 0} for i in range(5)]
    source, out = save(tmp_path / "in.jsonl", *rows), tmp_path / "out.jsonl"
    flags = ["--question", "q", "--answer", "tests", "--verifier", "code", "--keep", "hard", "--limit", "3"]
    assert main(["jsonl", "--input", source, "-o", str(out), *flags]) == 0
    made = load(out)
    assert len(made) == 3
    assert made[2] == {
        "messages": [{"role": "user", "content": "2?"}],
        "ground_truth": ["assert f() == 2"],
        "dataset": "code",
        "hard": 2,
    }


def test_mistakes_are_one_line_and_leave_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "a"')
    useless = save(tmp_path / "useless.jsonl", {"question": "a", "answer": "b"})
    for source, message in [
        ("nowhere.jsonl", "no such file"),
        (str(broken), "broken.jsonl:1: not JSON"),
        (useless, "no row can be used; "),
    ]:
        assert main(["gsm8k", "--input", source, "-o", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert sorted(file.name for file in tmp_path.iterdir()) == ["broken.jsonl", "useless.jsonl"]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "in.jsonl", {"question": "a", "answer": "#### 1"})
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    assert main(["gsm8k", "--input", source, "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["gsm8k", "--input", source, "-o", str(out), "--force"]) == 0
    assert load(out)[0]["ground_truth"] == "1"


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*KINDS, "jsonl", "[data] train"))


def test_a_hub_that_cannot_be_reached_is_said_at_once_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:1")
    assert main(["gsm8k", "-o", str(tmp_path / "out.jsonl")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("olmorl-data: --input: openai/gsm8k: no such folder here") and said.count("\n") == 1
    for way_out in ("give --input a file that is here", "HF_ENDPOINT", "HF_HUB_OFFLINE=1"):
        assert way_out in said
    assert not (tmp_path / "out.jsonl").exists()


def test_the_rows_of_a_taskset_come_from_the_python_that_has_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verifiers", "no/such/python", "letters_v1"]) == 2
    assert "no/such/python is no program: olmorl-data verifiers VENV/bin/python TASKSET" in capfd.readouterr().err
    assert main(["verifiers", sys.executable, "no_such_taskset"]) == 1
    assert "needs verifiers>=0.4 and the taskset" in capfd.readouterr().err
