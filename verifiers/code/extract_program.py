"""Finds the program in an answer: the last fenced block of Python, or the whole answer if it is Python without fences.

If the tests call functions of the program, a block without definitions is only an example and is skipped.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent
from typing import NamedTuple

MAX_PROGRAM = 1 << 20
"""The most characters of a program. A longer block is ignored."""
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([^\s`~]*)[^\n`~]*$", re.MULTILINE)
_FENCED = re.compile(r"```|^[ \t]*~~~", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:(?:async +)?def +\w|class +\w|\w+ *= *lambda\b)", re.MULTILINE)
_LANGUAGES = {"python", "python3", "py", "py3"}


class Block(NamedTuple):
    """The inside of a fenced block."""

    text: str
    tagged: bool
    """Whether the fence names Python; otherwise it names no language."""


def blocks(answer: str) -> list[Block]:
    """All closed blocks that may contain Python, in order."""
    found: list[Block] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2]:
            language = opening[2].lower()
            if not language or language in _LANGUAGES:
                found.append(Block(dedent(answer[opening.end() + 1 : fence.start()]), bool(language)))
            opening = None
    return found


def quick_program(answer: str, called: bool) -> str | None:
    """The program if it is found without parsing; "" if the answer has none; None if parsing is needed.

    Args:
        called: whether the tests call functions of the program.
    """
    found = _candidates(answer, called)
    if not found:
        return None if not _FENCED.search(answer) and answer.strip() and len(answer) <= MAX_PROGRAM else ""
    if found[-1].tagged or len(found) == 1:
        return found[-1].text if len(found[-1].text) <= MAX_PROGRAM else ""
    return None


def parsed_program(asked: tuple[str, bool]) -> str:
    """The program of any answer. It runs in a worker process, because input can crash Python's parser.

    An untagged block after another one often shows the output of the program.
    """
    answer, called = asked
    found = _candidates(answer, called)
    if not found:
        return answer if not _FENCED.search(answer) and _does_something(answer) else ""
    for block in reversed(found):
        if block.tagged or _does_something(block.text):
            return block.text
    return ""


def _candidates(answer: str, called: bool) -> list[Block]:
    """The blocks that may be the program."""
    found = blocks(answer)
    return [block for block in found if called and _DEFINITION.search(block.text)] or found


def _does_something(text: str) -> bool:
    """Whether the text is Python with more than names and literals."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(node, ast.Call) or (isinstance(node, ast.stmt) and not isinstance(node, ast.Expr))
        for node in ast.walk(tree)
    )
