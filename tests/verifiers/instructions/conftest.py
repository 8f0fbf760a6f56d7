"""The shared checks of a constraint: its own cases, and answers of 100 kB that could hang or break it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.verifiers.instructions.instruction_verifier import satisfied

SIZE = 100_000
GUARD_S = 5.0
"""Far more than a linear check needs, and far less than a quadratic one."""
_UNITS = (
    "a", "* ", "*\n", "[", "[]", "#", "- ", "\n", "\n\n", "a\n\n", "***", "******", '"', "'", "<<", ">>", "{", "(", "|",
    ".", ". ", "!", "?!", "A. ", "1. ", "U.S. ", "...", ": ", "a@", "http://", "Section ", "Section 1 ", "p.", "P.S. ",
    "My answer is ", "the cat ", "The Cat. ", "Ab, ", "é漢字🙂", "a\u0301", "\u200d", "\ue000\ue001", "\x00", "\u2028",
    "0", "9" * 50 + " ", "<think>", "```json\n", '{"a":', "\\", "-", "_", "a-", "I don't ", "x" * 999 + " ",
)  # fmt: skip
HOSTILE = tuple((unit * (SIZE // len(unit) + 1))[:SIZE] for unit in _UNITS)
TAILS = tuple(head + (unit * SIZE)[:SIZE] + tail for head, unit, tail in (
    ("Words.", " ", "end"), ("x.", ")", "x"), ("*", "a", ""), ("<<", "a", ">"), ("p.", " ", "s"), ("Section", "1", "x"),
    ("a", "\n", "b"), ("“", "a ", "”"), ('"', "a", '"'), ("[" * 9, "a", ""), ("- ", "\t", "b"),
))  # fmt: skip
BLANK = ("", " ", "\n\n", "\u200b", "...", "***", '"', "* * *", "![]()", "🙂", "\x00")


Case = tuple[dict[str, Any], str, bool]
"""Parameters of a constraint, an answer, and whether the answer satisfies the constraint."""
CheckCases = Callable[[str, list[Case]], None]
CheckHostile = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def check_cases() -> CheckCases:
    """Assert the verdicts of at least three cases of a constraint, with both verdicts among them."""

    def check(name: str, cases: list[Case]) -> None:
        assert len(cases) >= 3
        verdicts = [satisfied((answer, [(name, parameters)])) for parameters, answer, _ in cases]
        assert verdicts == [[expected] for *_, expected in cases]
        assert {expected for *_, expected in cases} == {True, False}

    return check


@pytest.fixture
def check_hostile() -> CheckHostile:
    """Assert that a constraint judges each hostile text in time, and that no text without words satisfies it."""

    def check(name: str, parameters: dict[str, Any]) -> None:
        for text in HOSTILE + TAILS:
            started = time.thread_time()
            assert satisfied((text, [(name, parameters)])) in ([True], [False])
            assert time.thread_time() - started < GUARD_S, f"{name} on {text[:20]!r}..."
        for text in BLANK:
            assert satisfied((text, [(name, parameters)])) == [False], f"{name} on {text!r}"

    return check
