"""Tells expressions and sets apart by their numbers, where proving them unequal by algebra would take far longer."""

from __future__ import annotations

import cmath
from math import isclose
from typing import Any

import sympy
from sympy.core.relational import Relational

APART = 1e-5
"""Relative distance at which values are surely different."""
_POINTS = ((0.7391, 1.6180, 2.2360, 0.5671), (1.3247, 0.4142, 3.3027, 2.6651))
_MAX_LETTERS = len(_POINTS[0])


def clearly_different(first: Any, second: Any) -> bool:
    """Whether two expressions have finite values that differ at some point. False says nothing."""
    if not (isinstance(first, sympy.Expr) and isinstance(second, sympy.Expr)):
        return False
    if any(isinstance(one, sympy.Symbol) or one.has(sympy.UnevaluatedExpr) for one in (first, second)):
        return False
    letters = sorted({symbol.name for one in (first, second) for symbol in one.free_symbols})
    if len(letters) > _MAX_LETTERS:
        return False
    return any(
        _apart(*(_value(one, dict(zip(letters, point, strict=False))) for one in (first, second))) for point in _POINTS
    )


def _value(expression: sympy.Expr, point: dict[str, float]) -> complex:
    """The value with each letter at its place; NaN where there is none."""
    try:
        return complex(expression.evalf(15, subs={symbol: point[symbol.name] for symbol in expression.free_symbols}))
    except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError):
        return complex("nan")


def _apart(one: complex, other: complex) -> bool:
    finite = cmath.isfinite(one) and cmath.isfinite(other)
    return finite and abs(one - other) > APART * max(1e-12, abs(one), abs(other))


def same_set(first: sympy.Set, second: sympy.Set) -> bool:
    """Whether two sets of real numbers are equal: by the ends of their intervals where they have numbers for ends."""
    if first == second:
        return True
    ends = [_ends(one) for one in (first, second)]
    if ends[0] is None or ends[1] is None:
        return bool(first.symmetric_difference(second).is_empty)
    return len(ends[0]) == len(ends[1]) and all(map(_same_piece, ends[0], ends[1]))


_Piece = tuple[float, float, bool, bool]


def half_line(relation: Relational) -> sympy.Set | None:
    """The solutions of an inequality between a letter and a number; None for others."""
    if isinstance(relation.rhs, sympy.Symbol):
        relation = relation.reversed
    end = relation.rhs
    if not isinstance(relation.lhs, sympy.Symbol) or not end.is_number or not end.is_extended_real:
        return None
    below, above = isinstance(relation, (sympy.Lt, sympy.Le)), isinstance(relation, (sympy.Gt, sympy.Ge))
    strict = isinstance(relation, (sympy.Lt, sympy.Gt))
    if below:
        return sympy.Interval(-sympy.oo, end, True, strict)
    return sympy.Interval(end, sympy.oo, strict, True) if above else None


def _ends(region: sympy.Set) -> list[_Piece] | None:
    """Start, end, and which of them are open, of each interval in order; None for other sets."""
    pieces = region.args if isinstance(region, sympy.Union) else (region,)
    if not all(isinstance(piece, sympy.Interval) for piece in pieces):
        return None
    try:
        return sorted((float(p.start), float(p.end), bool(p.left_open), bool(p.right_open)) for p in pieces)
    except TypeError:
        return None


def _same_piece(one: _Piece, other: _Piece) -> bool:
    return one[2:] == other[2:] and isclose(one[0], other[0]) and isclose(one[1], other[1])
