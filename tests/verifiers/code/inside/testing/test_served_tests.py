"""Which tests are served and which are refused as labels: pytest, unittest, captured printing, program imports."""

from __future__ import annotations

import asyncio

import pytest

from olmorl.config import Verifiers
from olmorl.verifiers.check_outcomes import Limit
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADD = "def add(a, b):\n    return a + b\ndef shout(text):\n    print(text)\n"
CASE = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(add(1, 1), 3)"
CAPTURE = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    f(100_000)\n"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    assert add(1, 1) == 2", "marked skip"),
        ("import pytest\n@pytest.mark.xfail(reason='x')\ndef test_a():\n    assert add(1, 1) == 2", "marked xfail"),
        ("import pytest\ndef test_a():\n    pytest.skip('no')\n    assert add(1, 1) == 2", "skips itself"),
        (CASE.replace("class", "@unittest.skip('no')\nclass"), "skips itself"),
        ("import pytest\nwith pytest.warns(UserWarning):\n    assert add(1, 1) == 2", "pytest.warns"),
        ("def test_a(tmp_path):\n    assert add(1, 1) == 2", "'tmp_path'"),
        ("def test_a(mocker):\n    assert add(1, 1) == 2", "'mocker'"),
        ("import pytest\n@pytest.fixture(params=[1])\ndef x(): return 1\ndef test_a(x): assert add(x, 1)", "fixture"),
        ("import pandas as pd\nassert add(1, 1) == 2", "imports pandas"),
        ("import solution\nsolution.helper = 1\nassert add(1, 1) == 2", "replaces helper"),
        ("from unittest.mock import Mock\nassert add(Mock(), 1)", "of type Mock"),
        ("import io\nassert add(io.StringIO('x'), 1)", "of type StringIO"),
        ("import asyncio\nassert add(asyncio.Queue(), 1)", "of type Queue"),
        ("import types\nassert add(types.SimpleNamespace(a=1), 1)", "of type SimpleNamespace"),
        ("class Base(add):\n    pass\nassert Base()", "derive"),
        ("assert math.gcd(4, 6) == 2", "uses nothing"),
        ("from math import gcd\nassert gcd(4, 6) == 2", "uses nothing"),
        ("assert len(str(5)) == 1", "uses nothing"),
        ("assert ListNode(1).val == 1", "uses nothing"),
        ("import unittest\nclass TestA(unittest.TestCase):\n    pass\nassert True", "uses nothing"),
    ],
)  # fmt: skip
async def test_what_is_not_served_is_the_labels_fault(any_sandbox: Sandbox, test: str, reason: str) -> None:
    program = ADD.replace("def add(a, b):", "class add:\n    pass\ndef other(a, b):") if "derive" in reason else ADD
    outcome = await any_sandbox.run(ProgramTest(program, test=test))
    assert isinstance(outcome, RunReport) and outcome.outcome == "label"
    assert reason in outcome.detail


@pytest.mark.parametrize(
    "test",
    [
        "def test_a():\n    assert add(1, 1) == 3",
        "async def test_a():\n    assert add(1, 1) == 3",
        "class TestA:\n    def test_a(self):\n        assert add(1, 1) == 3",
        CASE,
        f"{CASE}\nunittest.main()",
        "import pytest\n@pytest.mark.parametrize('a,b', [(1, 2), (1, 3)])\ndef test_a(a, b): assert add(a, 1) == b",
        "import pytest\nassert add(1, 1) == pytest.approx(2.1)",
        "import pytest\nassert add(1, 1) == pytest.approx([2])",
        "import pytest\nwith pytest.raises(ValueError):\n    add(1, 1)",
        "import pytest\nwith pytest.raises(TypeError, match='no such words'):\n    add(1, 'a')",
        "import pytest\ndef test_a():\n    pytest.fail('no') if add(1, 1) == 2 else None",
        "from solution import add\ndef test_a():\n    assert add(1, 1) == 3\nif __name__ == '__main__':\n    test_a()",
        "def test_a(capsys):\n    shout('a')\n    assert capsys.readouterr().out == 'b\\n'",
        "from unittest.mock import patch\nwith patch('builtins.print') as p: shout('a')\np.assert_called_with('b')",
    ],
)
async def test_a_test_function_that_is_only_defined_judges(any_sandbox: Sandbox, test: str) -> None:
    outcome = await any_sandbox.run(ProgramTest(ADD, test=test))
    assert isinstance(outcome, RunReport) and outcome.outcome == "failed", outcome


async def test_a_hundred_thousand_lines_pass_where_the_test_reads_them_and_where_it_does_not(sandbox: Sandbox) -> None:
    roomy = Sandbox(Verifiers(workers=1, code_tier=sandbox.tier or "auto"))
    program = "def f(n):\n    for i in range(n): print(i)\n    return n\n"
    tests = ["assert f(100_000) == 100_000", f"{CAPTURE}assert out.getvalue().split()[-1] == '99999'"]
    try:
        for test in tests:
            assert await roomy.run(ProgramTest(program, test=test)) == RunReport("passed")
        printed = await roomy.run(ProgramTest(f"{program}f(100_000)", stdin=""))
        assert isinstance(printed, RunReport) and printed.output.count(b"\n") == 100_000
    finally:
        await roomy.close()


@pytest.mark.parametrize("caught", [False, True])
async def test_a_flood_that_a_test_captures_passes_its_limit(sandbox: Sandbox, caught: bool) -> None:
    body = "try: print('x' * 1000)\n        except BaseException: pass" if caught else "print('x' * 1000)"
    program = f"def f(n):\n    while True:\n        {body}\n"
    assert isinstance(await sandbox.run(ProgramTest(program, test=f"{CAPTURE}assert out.getvalue() == ''")), Limit)


async def test_what_is_printed_in_one_test_is_not_read_in_another(any_sandbox: Sandbox) -> None:
    tests = [f"{CAPTURE}assert out.getvalue() == '100000\\n'", "assert f(1) is None"] * 3
    outcomes = await asyncio.gather(*(any_sandbox.run(ProgramTest("def f(n): print(n)", test=test)) for test in tests))
    assert outcomes == [RunReport("passed")] * 6
