"""What a test calls comes from the program: for every name in Python's standard library and builtins.

Every name goes through the names of a test in this process, and a sample of them through a sandbox in each tier.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib
import io
import keyword
import sys
import warnings
from functools import cache
from typing import Any

import pytest

from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.inside.bridge import standard_library
from olmorl.verifiers.code.inside.testing.name_lookup import NameLookup
from olmorl.verifiers.code.inside.testing.name_uses import NameUses
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import Sandbox
from tests.syntax_trees import parse

_NOT_IMPORTED = {"antigravity", "this", "idlelib", "lib2to3", "turtledemo", "test", "turtle", "tkinter", "msilib"}
"""Modules that open windows or print when they are imported."""
FORMS = (
    "assert {name}(1, 2) == 3",
    "found = {name}([3, 1])\nassert found == 3",
    "assert abs({name}(2) - 1.41) < 1e-2",
    "assert sorted({name}([2, 1])) == [1, 2]",
    "assert math.isclose({name}(4), 2.0)",
    "def check(candidate):\n    assert candidate(1)\ncheck({name})",
    "assert all({name}(a) == b for a, b in [(1, 2)])",
    "try:\n    {name}(-1)\nexcept Exception:\n    pass",
    "from solution import {name}\nassert {name}(1)",
    "from solution import *\nassert {name}(1)",
    "import solution\nassert solution.{name}(1)",
)
NOTHINGS = (
    "x = 1",
    "import sys\nsys.exit(0)",
    "def other(): pass",
    "if __name__ == '__main__':\n    pass",
    "import math",
)


@cache
def standard_names() -> tuple[str, ...]:
    """All public names of all modules of the standard library, of the modules themselves, and of the builtins."""
    found = {name for name in vars(builtins) if not name.startswith("_")} | set(standard_library.PROVIDED)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for module in sorted(sys.stdlib_module_names - _NOT_IMPORTED):
            with contextlib.suppress(ImportError, OSError):
                found |= {module, *vars(importlib.import_module(module))}
    return tuple(
        sorted(name for name in found if name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_")
    )


class Absent:
    """Asks a program that defines nothing."""

    def __call__(self, name: str) -> Any:
        raise NameError(name)


def uses(test: str) -> NameUses:
    return NameUses(test, parse(test))


def called_in(test: str, name: str) -> tuple[Any, NameLookup]:
    """What a test gets for a name when the program has nothing, and the names of the test."""
    names = NameLookup(uses(test), Absent())
    try:
        return names[name], names
    except NameError:
        return None, names


def test_every_name_of_the_standard_library_is_the_program_s() -> None:
    checked = 0
    for name in standard_names():
        found, names = called_in(f"assert {name}(1, 2) == 3", name)
        is_exception = isinstance(found, type) and issubclass(found, BaseException)
        assert is_exception or (found is None and names.fault), name
        assert not names.found
        checked += 1
    assert checked > 5000


@pytest.mark.parametrize("form", FORMS)
def test_in_no_form_is_a_name_provided_that_the_program_lacks(form: str) -> None:
    for name in standard_names():
        if name in vars(builtins):  # may be what the test judges with; the test next to this has them
            continue
        test = form.replace("{name}", name)
        found, names = called_in(test, name)
        imported = name in ("math", "solution", "check", "candidate", "found", "a", "b")
        assert imported or (found is None and names.fault), (name, form)


def test_a_builtin_never_stands_for_the_program() -> None:
    """A test that calls builtins alone is about one of them, or asks the program nothing and is a label's fault."""
    for name in (name for name in vars(builtins) if name[0] != "_" and not keyword.iskeyword(name)):
        for form in FORMS[:8]:
            names = NameLookup(uses(form.replace("{name}", name)), Absent())
            tree = compile(form.replace("{name}", name), "test.py", "exec")
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                if name not in ("breakpoint", "input", "help", "open", "exit", "quit"):
                    exec(tree, {"__builtins__": names, "__name__": "test"})
            assert not names.found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("program", NOTHINGS)
async def test_programs_that_do_nothing_pass_no_test_in_any_tier(sandbox: Sandbox, program: str) -> None:
    sample = ("add", "median", "permutations", "deepcopy", "sum", "filter", "bisect", "Counter", "OrderedDict", "print")
    jobs = [ProgramTest(program, test=form.replace("{name}", name)) for name in sample for form in FORMS]
    outcomes = await asyncio.gather(*map(sandbox.run, jobs))
    assert [job for job, outcome in zip(jobs, outcomes, strict=True) if not _unpaid(outcome)] == []


def _unpaid(outcome: RunReport | Limit | Failed) -> bool:
    """Failed, or the label's fault: that is no reward either, and no program gets another outcome."""
    return isinstance(outcome, RunReport) and outcome.outcome in ("failed", "label")


@pytest.mark.parametrize(
    ("test", "tested"),
    [
        ("assert sum(10, 15) == 25", "sum"),
        ("assert abs(pow(2, 3) - 8) < 1e-9", "pow"),
        ("assert isinstance(sum(1, 2), int)", "sum"),
        ("assert list(filter(None, [1])) == [1]", "filter"),
        ("assert len([1]) == 1", "len"),
        ("assert round(sum([1.5]), 1) == 1.5", "sum"),
        ("def check(sum):\n    assert abs(sum(1, 2) - 3) < 1\ncheck(sum)", "sum"),
    ],
)
def test_which_builtin_a_test_is_about(test: str, tested: str) -> None:
    names = NameLookup(uses(test), Absent())
    assert {name for name in vars(builtins) if name not in names} == {tested}


@pytest.mark.parametrize(
    "test",
    [
        "assert math.isclose(f(1), math.pi)",
        "assert sorted(f(1)) == [1]",
        "assert abs(f(1) - pi) < 1e-6",
        "assert collections.Counter(f(1)) == {}",
        "assert heapq.nlargest(1, f(1)) == [1]",
    ],
)
def test_what_a_test_may_judge_with(test: str) -> None:
    names = NameLookup(uses(test), lambda name: (lambda x: 0) if name == "f" else Absent()(name))
    for name in uses(test).free:
        assert names[name] is not None
    assert names.found == {"f"} and not names.fault


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("from statistics import median", True),
        ("from statistics import *", True),
        ("import statistics", False),
        ("median = None", False),
        ("def median(xs): return sorted(xs)[len(xs) // 2]", True),
    ],
)
async def test_a_program_may_answer_by_an_import(any_sandbox: Sandbox, program: str, passes: bool) -> None:
    outcome = await any_sandbox.run(ProgramTest(program, test="assert median([1, 2, 3]) == 2"))
    assert isinstance(outcome, RunReport) and outcome.outcome == ("passed" if passes else "failed")
