"""Compares a program's output with the expected output: equal lines up to trailing spaces, or close numbers.

A decimal number is close if it differs by at most a millionth of the expected one and one unit of its last digit.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

RELATIVE = 1e-6
ABSOLUTE = 1e-9
SMALL = 1 << 14
"""The most characters that are compared without a worker process, in microseconds."""
_SPACES = re.compile(r"(\s+)")


def same(pair: tuple[str, str]) -> bool:
    """Whether the first text, the output, agrees with the second. Linear time; long texts go to a worker process."""
    ours, theirs = map(_lines, pair)
    return len(ours) == len(theirs) and all(a == b or _same_line(a, b) for a, b in zip(ours, theirs, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(printed: str, expected: str) -> bool:
    """Whether two lines differ only in the digits of decimal numbers."""
    ours, theirs = _SPACES.split(printed), _SPACES.split(expected)
    return len(ours) == len(theirs) and all(a == b or _close(a, b) for a, b in zip(ours, theirs, strict=True))


def _close(printed: str, expected: str) -> bool:
    """Whether two decimal numbers are close. An expected integer needs an equal number."""
    if not any(mark in expected for mark in ".eE") or len(printed) > 64 or len(expected) > 64:
        return False
    try:
        ours, theirs = float(printed), float(expected)
    except ValueError:
        return False
    if not (math.isfinite(ours) and math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=ABSOLUTE)):
        return False
    exact, exponent = Decimal(expected), Decimal(expected).as_tuple().exponent
    return isinstance(exponent, int) and abs(Decimal(printed) - exact) <= Decimal(1).scaleb(exponent)
