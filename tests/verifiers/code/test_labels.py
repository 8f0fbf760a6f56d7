"""The tests in a label, in all its forms, and why a label has none."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from olmorl.verifiers.code.labels import MAX_BYTES, assertions, cases


class Evil:
    """Would make a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/unpickled",)


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


PAIRS = [("1 2", "3"), ("", "x")]
LIST = [{"input": given, "output": expected} for given, expected in PAIRS]


@pytest.mark.parametrize(
    "label",
    [
        LIST,
        json.dumps(LIST),
        packed(json.dumps(LIST)),
        packed(LIST),
        {"inputs": ["1 2", ""], "outputs": ["3", "x"]},
        [{"input": ["1 2"], "output": ["3"]}, {"input": "", "output": "x", "testtype": "stdin"}],
    ],
)
def test_forms_of_cases(label: Any) -> None:
    assert cases(label) == PAIRS


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ([], "no test"),
        ("[]", "no test"),
        ("not a label", "neither JSON"),
        (5, "list of"),
        (["a"], "list of"),
        ([{"input": "1"}], "must be text"),
        ([{"input": "1", "output": ""}, {"input": "2", "output": "\n"}], "every expected output is blank"),
        ([{"input": 1, "output": "2"}], "must be text"),
        ([{"input": "[1]", "output": "2", "testtype": "functional"}], "must be stdin"),
        ({"inputs": ["1"], "outputs": []}, "same length"),
        ({"inputs": ["1"], "outputs": ["2"], "fn_name": "f"}, "fn_name"),
        (packed(Evil()), "more than plain data"),
        (base64.b64encode(zlib.compress(b"\x80\x04garbage")).decode(), "more than plain data"),
        (base64.b64encode(zlib.compress(bytes(MAX_BYTES + 1))).decode(), "more than"),
        ("[" * 100_000, "neither JSON"),
    ],
)
def test_labels_without_cases(label: Any, reason: str) -> None:
    found = cases(label)
    assert isinstance(found, str) and reason in found
    assert not os.path.exists("/tmp/unpickled")  # noqa: PTH110 - the one place a pickle could name


def test_forms_of_assertions() -> None:
    tests = ["assert f(1) == 2", "try:\n    f(-1)\n    raise SystemError\nexcept ValueError:\n    pass"]
    assert assertions(tests) == assertions(json.dumps(tests)) == assertions(packed(tests)) == tests


def test_an_entry_that_asserts_nothing_prepares_the_others() -> None:
    assert assertions(["import math", "assert f(1)", "s = S()", "assert s.f()"]) == [
        "import math\nassert f(1)",
        "import math\ns = S()\nassert s.f()",
    ]


CHECK = "def check(candidate):\n    assert candidate(1)"


@pytest.mark.parametrize(
    ("label", "tests"),
    [
        ([CHECK, "check(f)", "check(g)"], [f"{CHECK}\ncheck(f)", f"{CHECK}\ncheck(g)"]),
        ([f"{CHECK}\ncheck(f)"], [f"{CHECK}\ncheck(f)"]),
        (
            ["class Helper:\n    pass", "def test_f():\n    assert f()"],
            ["class Helper:\n    pass\ndef test_f():\n    assert f()"],
        ),
        (
            ["class TestF:\n    def test(self):\n        assert f()"],
            ["class TestF:\n    def test(self):\n        assert f()"],
        ),
        (["with pytest.raises(ValueError):\n    f()"], ["with pytest.raises(ValueError):\n    f()"]),
    ],
)
def test_a_function_that_judges_is_no_test_until_it_is_called(label: Any, tests: list[str]) -> None:
    assert assertions(label) == tests


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ([], "no test"),
        ([CHECK], "no entry asserts"),
        (["class Checker:\n    def check(self, f):\n        assert f()"], "no entry asserts"),
        (["f(1)", "import math"], "no test"),
        (["f(1) == 2"], "no test"),
        (["assert f(1) =="], "does not parse"),
        (["assert f('\x00')"], "does not parse"),
        ([1], "list of assert"),
        ({"assert": "f()"}, "list of assert"),
        ("assert f(1) == 2", "neither JSON"),
        (packed(Evil()), "more than plain data"),
    ],
)
def test_labels_without_assertions(label: Any, reason: str) -> None:
    found = assertions(label)
    assert isinstance(found, str) and reason in found
