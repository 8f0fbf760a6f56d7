"""Decides whether two expressions have the same values.

Values are exact or balls, so different values are always told apart. Values count as equal if they agree at a precision
at which no term of them is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from flint import acb, arb, ctx, fmpq

from olmorl.verifiers.math.algebra.arithmetic import Arithmetic, Number, Rows, is_whole, magnitude
from olmorl.verifiers.math.algebra.evaluate import MARGIN_BITS, START_BITS, TreeValues, finite, value
from olmorl.verifiers.math.algebra.points import ORIGIN, POSITIVE_POINTS, Point, points
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, approximated, contains, names

MAX_BITS = 1 << 18
"""Highest precision. Values that need more are not equal."""
CONJUGATES, MAX_EXPONENT = 4, 4096
"""Two large algebraic numbers may be very close: (2+√3)^n is nearly a whole number."""
_TINY = arb(2) ** -64


class Meeting(NamedTuple):
    """Two values at one point."""

    alike: bool
    one_real: bool
    """The first value is real, and so are all values that it was calculated from."""
    other_real: bool


def same_value(label: Node, answer: Node, tolerance: float = 0.0) -> bool:
    """Whether two expressions have the same values.

    Args:
        tolerance: relative, of a written decimal.
    """
    tolerance = tolerance if approximated(label) or approximated(answer) else 0.0
    bare_log = contains(label, "call", "log") or contains(answer, "call", "log")
    readings = (False, True) if bare_log else (False,)
    return any(_agree(label, answer, tolerance, reading) for reading in readings)


def less_than_one(node: Node) -> bool:
    """Whether a number is between -1 and 1."""
    try:
        found = value(node)
    except (ArithmeticError, Unreadable, ValueError):
        return False
    return not isinstance(found, tuple) and bool(abs(acb(found)) < 1)


def _agree(label: Node, answer: Node, tolerance: float, common_log: bool) -> bool:
    """Whether values agree wherever both are real. If that is nowhere, they are compared as complex numbers.

    A point where only one is real decides nothing: a root of a product may equal a product of roots. It does decide if
    only one side has an absolute value: log x is not log |x|.
    """
    variables = names(label) | names(answer)
    one_sided = contains(label, "call", "abs") != contains(answer, "call", "abs")
    complex_numbers = contains(label, "constant", "i") or contains(answer, "constant", "i")
    tried = points(variables, label, answer) if variables else [ORIGIN]
    real = others = 0
    all_others = True
    for point in tried[:POSITIVE_POINTS] if complex_numbers else tried:
        try:
            met = _meet(label, answer, point, tolerance, common_log)
        except (ArithmeticError, Unreadable, ValueError):
            continue
        if complex_numbers or (met.one_real and met.other_real):
            if not met.alike:
                return False
            real += 1
        elif one_sided and met.one_real != met.other_real:
            return False
        elif not point.negative:
            others += 1
            all_others = all_others and met.alike
    return real > 1 or real == len(tried) or bool(others and all_others)


def _meet(label: Node, answer: Node, point: Point, tolerance: float, common_log: bool) -> Meeting:
    evaluators: list[TreeValues] = []

    def values(arithmetic: Arithmetic) -> tuple[Number | Rows, Number | Rows]:
        evaluators[:] = (TreeValues(arithmetic, point, common_log, tolerance) for _ in range(2))
        return evaluators[0].value(label), evaluators[1].value(answer)

    alike = agree(values, tolerance)
    return Meeting(alike, not evaluators[0].strayed, not evaluators[1].strayed)


def agree(values: Callable[[Arithmetic], tuple[Number | Rows, Number | Rows]], tolerance: float = 0.0) -> bool:
    """Whether two values are equal, at the precision that this takes.

    Args:
        values: calculates both.
        tolerance: relative, or absolute for a whole label; for decimals only.

    Raises:
        ArithmeticError, Unreadable: one of them has no value.
    """
    bits = START_BITS
    while bits <= MAX_BITS:
        with ctx.workprec(bits):
            arithmetic = Arithmetic()
            one, other = values(arithmetic)
            if not (finite(one) and finite(other)):
                raise ArithmeticError("no finite value")
            pairs = list(_pairs(one, other))
            if not all(_meet_at_all(*pair) for pair in pairs):
                return False
            if all(isinstance(number, fmpq) for pair in pairs for number in pair):
                return True
            arithmetic.needed += CONJUGATES * min(max(map(_exponent, chain.from_iterable(pairs))), MAX_EXPONENT)
            if bits >= arithmetic.needed + MARGIN_BITS:
                return all(_near(*pair, tolerance) if tolerance else _sharp(*pair) for pair in pairs)
        bits = max(2 * bits, arithmetic.needed + 2 * MARGIN_BITS)
    return False


def _pairs(one: Number | Rows, other: Number | Rows) -> Iterator[tuple[Number, Number]]:
    """Pairs of numbers that must be equal. Values of different shapes give one unequal pair."""
    if not (isinstance(one, tuple) and isinstance(other, tuple)):
        yield (fmpq(0), fmpq(1)) if isinstance(one, tuple) or isinstance(other, tuple) else (one, other)
    elif [len(row) for row in one] != [len(row) for row in other]:
        yield fmpq(0), fmpq(1)
    else:
        yield from zip(chain.from_iterable(one), chain.from_iterable(other), strict=True)


def _meet_at_all(one: Number, other: Number) -> bool:
    """Whether two numbers may be equal."""
    if isinstance(one, fmpq) and isinstance(other, fmpq):
        return bool(one == other)
    return bool((acb(one) - acb(other)).contains(0))


def _exponent(number: Number) -> int:
    return abs(magnitude(number) or 0)


def _sharp(one: Number, other: Number) -> bool:
    """Whether two balls that meet are so small that they must be one number."""
    reach = (acb(one) - acb(other)).abs_upper()
    scale = max(acb(one).abs_lower(), acb(other).abs_lower())
    return bool(reach <= scale * _TINY or (reach < _TINY and scale < _TINY))


def _near(one: Number, other: Number, tolerance: float) -> bool:
    """Whether the middles of two balls are close: absolutely if the label is whole, else relatively."""
    first, second = acb(one).mid(), acb(other).mid()
    apart = abs(first - second).mid()
    if is_whole(one) and apart > tolerance:
        return False
    # A third and 0.333333 are a millionth apart, and no float says a millionth.
    return bool(apart <= max(abs(first).mid(), abs(second).mid()) * (tolerance * (1 + 1e-9)))
