"""Whether two trees are equal: exactly where values are rational, else with digits that grow until they differ."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from mpmath import mp

from tests.verifiers.fuzz.expr import E, Value, floating, value, variables

DIGITS = (50, 220)
GUARD = 25
"""Digits that cancellation within a value may cost."""
POINTS = 4


def equal(one: E, other: E, positive: bool = False, digits: tuple[int, ...] = DIGITS) -> bool | None:
    """Whether two trees have the same values; None where they have none.

    Args:
        positive: variables are positive numbers only.
    """
    names = sorted(variables(one) | variables(other))
    seen = 0
    for point in range(POINTS if names else 1):
        at = _place(names, point, positive)
        verdict = _equal_at(one, other, at, digits)
        if verdict is False:
            return False
        seen += verdict is not None
    return True if seen else None


def holds(truth: bool, one: E, other: E, positive: bool = False, digits: tuple[int, ...] = DIGITS) -> bool:
    """Whether a pair is what it was made to be."""
    return equal(one, other, positive, digits) is truth


def apart(one: E, other: E, ratio: float = 1e-3) -> bool:
    """Whether two numbers differ by more than any tolerance for decimals."""
    with mp.workdps(30):
        first, second = floating(value(one)), floating(value(other))
        return bool(abs(first - second) > ratio * max(abs(first), abs(second)))


def _place(names: list[str], point: int, positive: bool) -> dict[str, Fraction]:
    chance = Random(f"{names} {point}")
    signs = (1,) if positive or point == 0 else (1, -1)
    return {
        name: chance.choice(signs) * Fraction(chance.randint(20, 400), chance.choice((7, 11, 13))) for name in names
    }


def _equal_at(one: E, other: E, at: dict[str, Fraction], digits: tuple[int, ...]) -> bool | None:
    for count in digits:
        with mp.workdps(count):
            try:
                first, second = value(one, at), value(other, at)
            except (ArithmeticError, ValueError):
                return None
            if isinstance(first, Fraction) and isinstance(second, Fraction):
                return first == second
            if _differ(first, second, count):
                return False
    return True


def _differ(first: Value, second: Value, count: int) -> bool:
    first, second = floating(first), floating(second)
    size = max(abs(first), abs(second))
    if size < mp.mpf(10) ** (-count // 4):
        return False  # a root of what is 0 but for rounding, such as the sine of pi
    return bool(abs(first - second) > max(size, mp.mpf(1)) * mp.mpf(10) ** (GUARD - count))
