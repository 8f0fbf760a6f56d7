"""Known data sets: where they are, and how a row in their published layout becomes a question with a label."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from olmorl.learner.data.readers import FOREIGN_LAYOUTS
from olmorl.verifiers.code.labels import decoded

Columns = Mapping[str, Any]


class QuestionAnswer(NamedTuple):
    """The question and the label that a converter finds in a row."""

    question: str
    answer: Any
    verifier: str | None = None
    """The row's own verifier, where a set needs several."""
    solution: str = ""
    """How the answer is found, where the set has it."""


class KnownDataset(NamedTuple):
    """A data set that is known by name."""

    source: str
    """Where it is on the hub."""
    convert: Callable[[Columns], QuestionAnswer]
    about: str
    keep: tuple[str, ...] = ()
    """Columns that are kept."""
    verifier: str = "math"


# --- mathematics --------------------------------------------------------------------------------


def gsm8k(row: Columns) -> QuestionAnswer:
    """The answer follows `####`, with commas in long numbers."""
    solution, marker, answer = text(row, "answer").rpartition("####")
    if not marker:
        raise ValueError("the answer has no ####")
    return QuestionAnswer(text(row, "question"), answer.strip().replace(",", ""), solution=_uncounted(solution))


def math(row: Columns) -> QuestionAnswer:
    """The answer is the last box of the solution."""
    return QuestionAnswer(text(row, "problem"), last_box(text(row, "solution")), solution=text(row, "solution"))


def question_and_answer(row: Columns) -> QuestionAnswer:
    """Question and answer have a column each, whose names differ between copies of a set."""
    question = text(row, "problem", "Problem", "question")
    column = next((name for name in ("answer", "Answer") if row.get(name) is not None), "answer")
    answer = row.get(column)
    if isinstance(answer, bool) or not isinstance(answer, int | str) or not str(answer).strip():
        raise ValueError(f"the column {column} is missing or empty")
    return QuestionAnswer(question, str(answer).strip())


def dapo(row: Columns) -> QuestionAnswer:
    """verl's layout. Its instruction around the problem asks for another form of answer, and is removed."""
    turns, model = row.get("prompt"), row.get("reward_model")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict) or not isinstance(model, dict):
        raise ValueError("not in verl's layout: prompt is no list of turns, or reward_model is missing")
    paragraphs = text(turns[0], "content").split("\n\n")
    if len(paragraphs) >= 3 and paragraphs[0].startswith("Solve the following") and "Answer:" in paragraphs[-1]:
        paragraphs = paragraphs[1:-1]
    return QuestionAnswer("\n\n".join(paragraphs), text(model, "ground_truth"))


def last_box(text: str) -> str:
    """The content of the last `\\boxed{...}` or `\\fbox{...}`, braces balanced, or of `\\boxed 5` up to a dollar sign.

    Raises ValueError without one.
    """
    begin = max(text.rfind(name) + len(name) * (name in text) for name in ("\\boxed", "\\fbox"))
    rest = text[begin:].lstrip() if begin > 0 else ""
    if not rest.startswith("{"):
        if answer := rest.partition("$")[0].strip():
            return answer
        raise ValueError("the solution has no \\boxed{}")
    begin = len(text) - len(rest) + 1
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[begin:]):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[begin : begin + brace.start()].strip()
    raise ValueError("the box of the solution is not closed")


def _uncounted(solution: str) -> str:
    """A solution of GSM8K without its calculator notes, `<<2*600=1200>>`."""
    return re.sub(r"<<[^<>]*>>", "", solution).strip()


# --- instructions -------------------------------------------------------------------------------


def instructions(row: Columns) -> QuestionAnswer:
    """The prompt has its constraints in words; their ids and parameters are the label."""
    ids, parameters = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(ids, list) or not isinstance(parameters, list):
        raise ValueError("the columns instruction_id_list and kwargs are no lists")
    given = [json.loads(one) if isinstance(one, str) else one for one in parameters]
    # Tables have a column for every parameter of every constraint.
    given = [{name: value for name, value in (one or {}).items() if value is not None} for one in given]
    return QuestionAnswer(text(row, "prompt"), json.dumps({"instruction_id": ids, "kwargs": given}))


# --- programs -----------------------------------------------------------------------------------

PROGRAM = "Write a Python program that reads standard input and prints the result. Put it into one ```python block."
FUNCTION = "Write the Python code, in one ```python block. It begins like this:\n\n```python\n{starter}\n```"
NAMED = "Write a Python function `{name}`, in one ```python block."


def humaneval(row: Columns) -> QuestionAnswer:
    """The prompt is the head of a function; `check` in the tests takes the function."""
    name = text(row, "entry_point")
    question = FUNCTION.format(starter=text(row, "prompt", strip=False).rstrip())
    return QuestionAnswer(question, json.dumps([f"{text(row, 'test', strip=False)}\ncheck({name})"]))


def mbpp(row: Columns) -> QuestionAnswer:
    """The question shows the tests, because they have the name of the function."""
    tests = row.get("test_list")
    if not isinstance(tests, list) or not tests:
        raise ValueError("the column test_list is missing or empty")
    imports = row.get("test_imports") or [row.get("test_setup_code") or ""]
    shown = "\n".join(tests)
    question = f"{text(row, 'text', 'prompt')}\n\nThe code must pass these tests:\n\n```python\n{shown}\n```"
    return QuestionAnswer(question, json.dumps([*filter(None, imports), *tests]))


def competition(row: Columns) -> QuestionAnswer:
    """APPS and TACO: `input_output` has inputs and outputs, with `fn_name` those of a function."""
    question, starter = text(row, "question"), str(row.get("starter_code") or "").rstrip()
    cases = _parsed(row, "input_output")
    inputs, outputs = (cases.get(name) for name in ("inputs", "outputs")) if isinstance(cases, dict) else (None, None)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise ValueError("input_output has no tests: inputs and outputs must be lists of one length")
    if not (name := cases.get("fn_name")):
        pairs = [{"input": _lines(a), "output": _lines(b)} for a, b in zip(inputs, outputs, strict=True)]
        return QuestionAnswer(f"{question}\n\n{PROGRAM}", json.dumps(pairs), "code_stdio")
    tests = _calls(name, starter, [(a, _either(b)) for a, b in zip(inputs, outputs, strict=True)])
    return QuestionAnswer(f"{question}\n\n{_asks_for(name, starter)}", json.dumps(tests), "code")


def livecodebench(row: Columns) -> QuestionAnswer:
    """Public and private tests, each of `testtype` stdin or functional; the private ones may be packed."""
    question, starter = text(row, "question_content"), str(row.get("starter_code") or "").rstrip()
    cases = [*_parsed(row, "public_test_cases"), *(_parsed(row, "private_test_cases") or [])]
    if not cases or not all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in cases):
        raise ValueError("the test cases have no input or no output")
    if all(case.get("testtype", "stdin") == "stdin" for case in cases):
        pairs = [{"input": case["input"], "output": case["output"]} for case in cases]
        return QuestionAnswer(f"{question}\n\n{PROGRAM}", json.dumps(pairs), "code_stdio")
    name = (_parsed(row, "metadata") or {}).get("func_name")
    if not name:
        raise ValueError("metadata has no func_name, and a test calls a function")
    calls = [
        ([json.loads(line) for line in case["input"].splitlines() if line.strip()], [json.loads(case["output"])])
        for case in cases
    ]
    tests = _calls(name, starter, calls)
    return QuestionAnswer(f"{question}\n\n{_asks_for(name, starter)}", json.dumps(tests), "code")


def _asks_for(name: str, starter: str) -> str:
    return FUNCTION.format(starter=starter) if starter.strip() else NAMED.format(name=name)


LISTS = "def lists(value):\n    return [*map(lists, value)] if isinstance(value, (list, tuple)) else value"
"""JSON has no tuples: the published checkers take a tuple for the list of a label."""


def _calls(name: str, starter: str, calls: Sequence[tuple[Any, list[Any]]]) -> list[str]:
    """The tests of a function, each by its arguments and the results that are right.

    Starter code of LeetCode has a class `Solution`.
    """
    function = f"Solution().{name}" if "class Solution" in starter else name
    tests = [LISTS]
    for arguments, right in calls:
        given = arguments if isinstance(arguments, list) else [arguments]
        call = f"{function}({', '.join(repr(_whole_keys(one)) for one in given)})"
        first, *others = [repr(_whole_keys(one)) for one in right]
        test = f"result = lists({call})\nassert " + " or ".join(f"result == {one}" for one in (first, *others))
        tests.append(test if isinstance(right[0], list) or others else f"assert {call} == {first}")
    return tests


def _whole_keys(value: Any) -> Any:
    """JSON has no whole numbers as keys: the published checkers read such a text as a number."""
    if isinstance(value, dict) and all(key.removeprefix("-").isdecimal() for key in value):
        return {int(key): one for key, one in value.items()}
    return value


def _either(output: Any) -> list[Any]:
    """APPS wraps some results in a list; its own checker accepts both readings."""
    return [output[0], output] if isinstance(output, list) and len(output) == 1 else [output]


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _parsed(row: Columns, column: str) -> Any:
    """A column that is JSON, or a packed pickle of it."""
    value = row.get(column)
    if value in (None, ""):
        return None
    try:
        return decoded(value)
    except ValueError as error:
        raise ValueError(f"{column} {error}") from None


def by_columns(question: str, answer: str) -> Callable[[Columns], QuestionAnswer]:
    """A converter that reads two columns."""

    def convert(row: Columns) -> QuestionAnswer:
        return QuestionAnswer(text(row, question), _label(row, answer))

    return convert


def _label(row: Columns, column: str) -> Any:
    value = row.get(column)
    if value is None or value in ("", []):
        raise ValueError(f"the column {column} is missing or empty")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"the column {column} is {value}")
    return str(value) if isinstance(value, int | float) else value


_IMITATED = ("conversations", "conversation", "instruction", "chosen")
"""Columns of layouts with texts to imitate, which have no label."""


def text(row: Columns, *columns: str, strip: bool = True) -> str:
    """The text in the first of these columns that is there. Raises ValueError, which names a known foreign layout."""
    value = next((row[column] for column in columns if row.get(column) is not None), None)
    if not isinstance(value, str) or not value.strip():
        foreign = next((FOREIGN_LAYOUTS[name] for name in _IMITATED if name in row and name not in columns), "")
        raise ValueError(f"the column {columns[0]} is missing or empty{f' ({foreign})' if foreign else ''}")
    return value.strip() if strip else value


KINDS = {
    "gsm8k": KnownDataset("openai/gsm8k@main", gsm8k, "grade-school word problems, answers behind ####"),
    "math": KnownDataset(
        "DigitalLearningGmbH/MATH-lighteval", math, "competition problems, boxed answers", ("level", "type")
    ),
    "math500": KnownDataset(
        "HuggingFaceH4/MATH-500", question_and_answer, "500 problems of MATH", ("subject", "level", "unique_id")
    ),
    "aime": KnownDataset("HuggingFaceH4/aime_2024", question_and_answer, "AIME problems with whole numbers", ("year",)),
    "deepscaler": KnownDataset(
        "agentica-org/DeepScaleR-Preview-Dataset", question_and_answer, "competition problems with answers"
    ),
    "dapo": KnownDataset("BytedTsinghua-SIA/DAPO-Math-17k", dapo, "competition problems in verl's layout"),
    "ifeval": KnownDataset("google/IFEval", instructions, "prompts with verifiable constraints", ("key",), "ifeval"),
    "ifbench": KnownDataset("allenai/IFBench_test", instructions, "the same, other constraints", ("key",), "ifeval"),
    "humaneval": KnownDataset(
        "openai/openai_humaneval", humaneval, "Python functions with tests", ("task_id",), "code"
    ),
    "mbpp": KnownDataset("google-research-datasets/mbpp", mbpp, "short Python tasks", ("task_id",), "code"),
    "apps": KnownDataset(
        "codeparrot/apps", competition, "programs and functions", ("problem_id", "difficulty"), "code"
    ),
    "taco": KnownDataset("BAAI/TACO", competition, "the same layout", ("difficulty",), "code"),
    "livecodebench": KnownDataset(
        "livecodebench/code_generation_lite", livecodebench, "contest problems", ("question_id", "difficulty"), "code"
    ),
}
