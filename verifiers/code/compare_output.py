"""Compares a program's output with the expected output: equal lines up to trailing spaces, or close numbers.

A decimal number is close if it differs by at most a millionth of the expected one. For large numbers this alone would
accept too much: the difference is also at most a millionth, one unit of the last expected digit, or what rounding in
floating point explains.
"""

from __future__ import annotations

import math
import re

MILLIONTH = 1e-6
ABSOLUTE = 1e-9
ROUNDED = 1e-9
"""Relative: far more than a calculation in another order loses."""
SMALL = 1 << 14
"""The most characters that are compared without a worker process, in microseconds."""
_WRITTEN = re.compile(r"[-+]?\d*(?:\.(?P<decimals>\d*))?(?:[eE](?P<power>[-+]?\d+))?")
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
    written = _WRITTEN.fullmatch(expected)
    if written is None or not math.isfinite(ours):
        return False
    last_digit = float(f"1e{int(written['power'] or 0) - len(written['decimals'] or '')}")
    most = max(MILLIONTH, last_digit * (1 + MILLIONTH), abs(theirs) * ROUNDED)
    return math.isclose(ours, theirs, rel_tol=MILLIONTH, abs_tol=ABSOLUTE) and abs(ours - theirs) <= most
