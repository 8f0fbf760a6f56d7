"""Which part of an answer is its program."""

from __future__ import annotations

import time

import pytest

from olmorl.verifiers.code.extract_program import parsed_program, quick_program

ANSWERS = {
    "tagged": ("So:\n```python\nx = f()\n```\nDone.", "x = f()\n"),
    "py": ("```py\nx = f()\n```", "x = f()\n"),
    "untagged": ("```\nx = f()\n```", "x = f()\n"),
    "capitals and a title": ('```Python title="a.py"\nx = f()\n```', "x = f()\n"),
    "windows": ("```python\r\nx = f()\r\n```\r\n", "x = f()\r\n"),
    "the last": ("```python\nfirst()\n```\nno:\n```python\nsecond()\n```", "second()\n"),
    "the last, untagged": ("```python\nfirst()\n```\nno:\n```\nsecond()\n```", "second()\n"),
    "not what it prints": ("```python\nprint(5)\n```\nprints\n```\n5\n```", "print(5)\n"),
    "not what it prints in words": ("```python\nprint(5)\n```\nprints\n```\nthe answer is 5\n```", "print(5)\n"),
    "not what it prints, untagged": ("```\nprint(5)\n```\nFor 3 it prints\n```\n5\n```", "print(5)\n"),
    "the last of the untagged": ("```\nfirst()\n```\nno:\n```\nsecond()\n```", "second()\n"),
    "not another language": ("```python\nprint(5)\n```\n```bash\npython a.py\n```", "print(5)\n"),
    "in a list": ("- so:\n  ```python\n  def f():\n      return 1\n  ```\n", "def f():\n    return 1\n"),
    "fences inside": ('````python\nx = """\n```\n"""\nf()\n````', 'x = """\n```\n"""\nf()\n'),
    "tildes": ("~~~python\nf()\n~~~", "f()\n"),
    "tildes around backticks": ('~~~~py\nx = """\n```\n"""\nf()\n~~~~', 'x = """\n```\n"""\nf()\n'),
    "no fences": ("def f():\n    return 1\n", "def f():\n    return 1\n"),
    "prose": ("I think it is def f.", ""),
    "one word": ("hello", ""),
    "a number": ("42", ""),
    "not closed": ("```python\nx = f()\n", ""),
    "inline": ("use ```x = f()``` here", ""),
    "another language only": ("```cpp\nint main() {}\n```", ""),
    "nothing": ("", ""),
}


DEFINES = "```python\ndef f():\n    return 1\n```\n"
CALLED = {
    "not an example": (f"{DEFINES}So:\n```python\nprint(f())\n```", "def f():\n    return 1\n"),
    "not an example without a tag": (f"{DEFINES}So:\n```\nf()\n```", "def f():\n    return 1\n"),
    "the last definition": (f"{DEFINES}No:\n```python\nf = lambda: 2\n```\n```py\nf()\n```", "f = lambda: 2\n"),
    "the last, untagged": (f"{DEFINES}No:\n```\nclass f:\n    pass\n```", "class f:\n    pass\n"),
    "not another language's": (f"{DEFINES}As in:\n```\nclass f {{ }}\n```", "def f():\n    return 1\n"),
    "an import where nothing is defined": ("```python\nfrom math import gcd\n```", "from math import gcd\n"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_program_of_an_answer(name: str) -> None:
    answer, program = ANSWERS[name]
    assert found(answer, False) == program


@pytest.mark.parametrize("name", CALLED)
def test_a_program_that_is_called_defines_something(name: str) -> None:
    answer, program = CALLED[name]
    assert found(answer, True) == program


def test_what_needs_no_parser_is_settled_alike_with_one() -> None:
    for called, answers in ((False, ANSWERS), (True, CALLED)):
        for answer, program in answers.values():
            if quick_program(answer, called) is not None and program:
                assert parsed_program((answer, called)) == program


def found(answer: str, called: bool) -> str:
    """As the verifiers find it."""
    program = quick_program(answer, called)
    return parsed_program((answer, called)) if program is None else program


@pytest.mark.parametrize(
    "text",
    ["```\n" * 50_000, "`" * 200_000, "```python\n" * 50_000, " " * 200_000 + "```", "```\nasync def\n" * 50_000],
)
def test_extraction_takes_linear_time(text: str) -> None:
    started = time.thread_time()
    quick_program(text, True)
    assert time.thread_time() - started < 5.0
