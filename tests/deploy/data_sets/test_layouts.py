"""Small rows in the published layouts: the verifier reads every label, and tells a right answer from a wrong one."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from olmorl.config import Verifiers
from olmorl.deploy.data_sets.layouts import KINDS
from olmorl.deploy.evaluation.answer_file import completion_of
from olmorl.deploy.prepare_data import main
from olmorl.deploy.verify.row_scoring import scored
from olmorl.learner.data.readers import layout
from olmorl.verifiers.scorer import VerifierScorer
from tests.deploy.evaluation.text_engine import model_folder
from tests.verifiers.builders import make_prompt


def program(text: str) -> str:
    return f"```python\n{text}\n```"


def packed(cases: list[dict[str, str]]) -> str:
    """The private tests of LiveCodeBench."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


ECHO, SUM = program("print(input())"), program("a, b = map(int, input().split())\nprint(a + b)")
TWO_SUM = "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n        "
SOLVED = program(
    "class Solution:\n    def twoSum(self, nums, target):\n        return next([i, j] for j in range(len(nums)) "
    "for i in range(j) if nums[i] + nums[j] == target)"
)
STDIN = json.dumps({"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]})
ROWS: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    "gsm8k": [({"question": "6 x 200?", "answer": "6 * 200 = <<6*200=1200>>1200\n#### 1,200"}, "It is 1200.", "12")],
    "math": [
        ({"problem": "1/2?", "level": "Level 1", "type": "Algebra", "solution": r"So $\boxed{\frac12}$."}, "0.5", "2")
    ],
    "math500": [
        ({"problem": "Where?", "solution": "...", "answer": r"\left( 3, \frac{\pi}{2} \right)", "level": 2,
          "unique_id": "test/precalculus/807.json"}, r"\boxed{(3, \pi/2)}", "3"),
    ],
    "aime": [
        ({"id": 60, "problem": "How many?", "solution": "...", "answer": "204", "year": "2024"}, "204", "20"),
        ({"ID": "2024-I-1", "Problem": "How far?", "Solution": "...", "Answer": 73}, "73", "72"),
        ({"question": "How long?", "answer": "588"}, "588", "58"),
    ],
    "deepscaler": [({"problem": "x?", "answer": "-\\frac{2}{3}", "solution": "..."}, r"\boxed{-2/3}", "2/3")],
    "dapo": [
        ({"data_source": "math_dapo", "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
          "prompt": [{"role": "user", "content": "Solve the following math problem step by step. Answer: $Answer\n\n"
                      "17+17?\n\nRemember to put your answer on its own line after \"Answer:\"."}],
          "extra_info": {"index": "9a9b"}}, "34", "3"),
    ],
    "ifeval": [
        ({"key": 1000, "prompt": "Sing. No comma.", "instruction_id_list": ["punctuation:no_comma",
          "length_constraints:number_words"], "kwargs": [{"num_words": None, "relation": None},
          {"num_words": 2, "relation": "at least"}]}, "La la la", "La, la, la"),
    ],
    "ifbench": [
        ({"key": "1", "prompt": "Tell.", "instruction_id_list": ["count:word_count_range"],
          "kwargs": [{"N": None, "min_words": 2.0, "max_words": 4.0}]}, "One two three", "One"),
    ],
    "humaneval": [
        ({"task_id": "HumanEval/0", "prompt": "def inc(x):\n    \"\"\"Add one.\"\"\"\n", "canonical_solution": "...",
          "test": "def check(candidate):\n    assert candidate(1) == 2\n", "entry_point": "inc"},
         program("def inc(x):\n    return x + 1"), program("def inc(x):\n    return x")),
    ],
    "mbpp": [
        ({"task_id": 2, "text": "Write a function that adds one.", "code": "...", "test_setup_code": "",
          "test_list": ["assert inc(1) == 2", "assert inc(5) == 6"], "challenge_test_list": []},
         program("def inc(x): return x + 1"), program("def inc(x): return 2")),
    ],
    "apps": [
        ({"problem_id": 0, "question": "Add.", "solutions": "[]", "input_output": STDIN, "difficulty": "interview",
          "url": "", "starter_code": ""}, SUM, ECHO),
        ({"problem_id": 1, "question": "Find the pair.", "starter_code": TWO_SUM, "difficulty": "interview",
          "input_output": json.dumps({"fn_name": "twoSum", "inputs": [[[2, 7, 11, 15], 9]], "outputs": [[0, 1]]})},
         SOLVED, SOLVED.replace("[i, j]", "[j, i]")),
        ({"problem_id": 2, "question": "Double it.", "starter_code": "", "difficulty": "introductory",
          "input_output": json.dumps({"fn_name": "double", "inputs": [["ab"], ["c"]], "outputs": [["abab"], ["cc"]]})},
         program("def double(x): return x * 2"), program("def double(x): return x")),
    ],
    "taco": [
        ({"question": "Sum up.", "solutions": "[]", "starter_code": "", "input_output": STDIN, "difficulty": "EASY",
          "raw_tags": "[]", "name": None, "source": "codeforces", "tags": "[]", "skill_types": "[]"}, SUM, ECHO),
        ({"question": "Add one.", "starter_code": "def inc(x):\n\t", "difficulty": "EASY",
          "input_output": json.dumps({"fn_name": "inc", "inputs": [[1], [5]], "outputs": [2, 6]})},
         program("def inc(x): return x + 1"), program("def inc(x): return x")),
        ({"question": "Least and most.", "starter_code": "", "difficulty": "EASY",
          "input_output": json.dumps({"fn_name": "ends", "inputs": [[[3, 1]]], "outputs": [[1, 3]]})},
         program("def ends(x): return min(x), max(x)"), program("def ends(x): return max(x), min(x)")),
        ({"question": "Pairs.", "starter_code": "", "difficulty": "EASY",
          "input_output": json.dumps({"fn_name": "pairs", "inputs": [[{"1": 2}]], "outputs": [[[1, 2]]]})},
         program("def pairs(x): return list(x.items())"), program("def pairs(x): return list(x.values())")),
        ({"question": "Turn.", "starter_code": "", "difficulty": "EASY",
          "input_output": json.dumps({"fn_name": "turn", "inputs": [[[1, -2]]], "outputs": [{"1": 0, "-2": 1}]})},
         program("def turn(x): return {one: n for n, one in enumerate(x)}"), program("def turn(x): return {}")),
    ],
    "livecodebench": [
        ({"question_title": "A", "question_content": "Add.", "platform": "atcoder", "question_id": "abc301_a",
          "starter_code": "", "difficulty": "easy", "metadata": "{}",
          "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
          "private_test_cases": packed([{"input": "5 6", "output": "11", "testtype": "stdin"}])},
         SUM, program("input()\nprint(3)")),
        ({"question_title": "B", "question_content": "Find the pair.", "platform": "leetcode", "question_id": "1",
          "starter_code": TWO_SUM, "difficulty": "easy", "metadata": json.dumps({"func_name": "twoSum"}),
          "public_test_cases": json.dumps([{"input": "[2, 7]\n9", "output": "[0, 1]", "testtype": "functional"}]),
          "private_test_cases": json.dumps([{"input": "[3, 3, 4]\n7", "output": "[0, 2]", "testtype": "functional"}])},
         SOLVED, SOLVED.replace("[i, j]", "[0, 1]")),
    ],
}  # fmt: skip


@pytest.fixture
async def scorer() -> AsyncIterator[VerifierScorer]:
    made = VerifierScorer(Verifiers(workers=1))
    await made.start()
    yield made
    await made.stop()


def test_every_layout_has_a_row() -> None:
    assert ROWS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", ROWS)
async def test_a_row_in_the_published_layout(kind: str, tmp_path: Path, scorer: VerifierScorer) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row, _, _ in ROWS[kind]))
    assert main([kind, "--input", str(source), "-o", str(out)]) == 0
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(made) == len(ROWS[kind])
    for values, (_, right, wrong) in zip(made, ROWS[kind], strict=True):
        read = layout(values, None, False).labelled()
        for name, label in zip(read.datasets, read.ground_truths, strict=True):
            assert await scorer.problem(name, label) is None
        prompt = make_prompt(read.datasets, read.ground_truths, messages=read.messages)
        results = await scored(scorer, prompt, [completion_of({"completion": text}) for text in (right, wrong)])
        assert [(one.solved, error) for one, error in results] == [(True, None), (False, None)], values


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, row: dict[str, Any], *more: str) -> str:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(row) + "\n")
    assert main([kind, "--input", str(source), "-o", str(tmp_path / "out.jsonl"), *more]) == 2
    return capsys.readouterr().err


def test_foreign_layouts_are_named_for_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alpaca = {"instruction": "Name three primes.", "input": "", "output": "2, 3 and 5"}
    assert "Alpaca's layout" in refused(capsys, tmp_path, "gsm8k", alpaca)
    sharegpt = {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]}
    said = refused(capsys, tmp_path, "jsonl", sharegpt)
    assert "ShareGPT's layout" in said and "texts to imitate, which no rule can check" in said


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("apps", {"input_output": ""}, "input_output has no tests"),
        (
            "apps",
            {"input_output": '{"inputs": ["1"], "outputs": []}'},
            "inputs and outputs must be lists of one length",
        ),
        ("livecodebench", {"private_test_cases": "?"}, "private_test_cases is neither JSON nor a compressed pickle"),
        ("ifeval", {"kwargs": None}, "the columns instruction_id_list and kwargs are no lists"),
        ("mbpp", {"test_list": []}, "the column test_list is missing or empty"),
        ("aime", {"answer": True}, "the column answer is missing or empty"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, tmp_path, kind, ROWS[kind][0][0] | changes)


async def test_the_tags_of_gsm8k_with_an_example_and_short_solutions(tmp_path: Path, scorer: VerifierScorer) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"question": f"{n}+1?", "answer": f"{'long ' * (n == 2)}{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
        for n in range(4)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--tags", "--one-shot", "--max-solution-tokens", "9", "--tokenizer", model_folder(tmp_path / "model")]
    assert main(["gsm8k", "--input", str(source), "-o", str(out), *words]) == 0
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["messages"][-1]["content"] for row in made] == ["1+1?", "3+1?"], "0 is the example, 2 is over-long"
    system, question, answer, _ = made[0]["messages"]
    assert "<think>" in system["content"] and question["content"] == "0+1?"
    assert answer["content"] == "<think>\n0 + 1 = 1\n</think>\n<answer>\n1\n</answer>"
    assert (made[0]["dataset"], made[0]["ground_truth"]) == (["format", "tag_count", "math"], ["", "", "2"])
