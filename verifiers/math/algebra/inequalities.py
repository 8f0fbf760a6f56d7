"""Solves inequalities in one variable: of polynomials and their quotients, with absolute values, exactly (FLINT)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from flint import acb, ctx, fmpq, fmpq_poly

from olmorl.verifiers.math.algebra.arithmetic import Number
from olmorl.verifiers.math.algebra.evaluate import START_BITS
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, replaced

MAX_DEGREE = 64
MAX_ABSOLUTE = 4
"""Absolute values in one inequality."""


class Solution(NamedTuple):
    """The ordered points where a difference changes sign or is undefined, and the parts that solve it."""

    ends: tuple[Number, ...]
    at_ends: tuple[bool, ...]
    between: tuple[bool, ...]
    """One more than ends: below the first, between them, above the last."""


def solve(difference: Node, operator: str, name: Node) -> Solution:
    """Where `difference operator 0` holds. Raises Unreadable if it is not made of polynomials."""
    cases = _cases(difference, name, MAX_ABSOLUTE)
    polynomials = [part for _, quotient in cases for part in quotient] + [of for case, _ in cases for of, _ in case]
    ends = _roots(polynomials)
    between = [_holds(cases, operator, place) for place in _places(ends)]
    return Solution(tuple(ends), tuple(_holds(cases, operator, end) for end in ends), tuple(between))


_Quotient = tuple[fmpq_poly, fmpq_poly]
_Case = tuple[list[tuple[fmpq_poly, int]], _Quotient]
"""Polynomials with their signs, and the quotient that the inequality becomes where they have these signs."""


def _cases(node: Node, name: Node, left: int) -> list[_Case]:
    """One case for each choice of the signs within absolute values."""
    inside = _innermost(node)
    if inside is None:
        return [([], _quotient(node, name))]
    if not left:
        raise Unreadable("too many absolute values")
    above, below = _quotient(inside, name)
    found: list[_Case] = []
    for sign in (1, -1):
        replacement = inside if sign > 0 else Node("negative", None, (inside,))
        rest = replaced(node, Node("call", "abs", (inside,)), replacement)
        found += [([(above * below, sign), *signs], quotient) for signs, quotient in _cases(rest, name, left - 1)]
    return found


def _innermost(node: Node) -> Node | None:
    """The content of an innermost absolute value."""
    for part in node.parts:
        if (found := _innermost(part)) is not None:
            return found
    return node.parts[0] if node.kind == "call" and node.value == "abs" else None


def _quotient(node: Node, name: Node) -> _Quotient:
    """Numerator and denominator."""
    if node == name:
        return fmpq_poly([0, 1]), fmpq_poly([1])
    if node.kind == "number":
        number = node.value[0]
        return fmpq_poly([fmpq(number.numerator, number.denominator)]), fmpq_poly([1])
    if node.kind not in ("sum", "product", "negative", "quotient", "power", "percent"):
        raise Unreadable("not a polynomial")
    if node.kind == "power":
        return _power(*_quotient(node.parts[0], name), node.parts[1])
    above, below = _quotient(node.parts[0], name)
    if node.kind == "negative":
        return -above, below
    if node.kind == "percent":
        return above / 100, below
    for part in node.parts[1:]:
        top, bottom = _quotient(part, name)
        if node.kind == "sum":
            above, below = above * bottom + top * below, below * bottom
        elif node.kind == "product":
            above, below = above * top, below * bottom
        else:
            above, below = above * bottom, below * top
        _check(above, below)
    return above, below


def _power(above: fmpq_poly, below: fmpq_poly, exponent: Node) -> _Quotient:
    size = exponent.value[0] if exponent.kind == "number" else None
    if size is None or size.denominator != 1 or not 0 <= size * max(above.degree(), below.degree(), 1) <= MAX_DEGREE:
        raise Unreadable("not a power of a polynomial")
    return above ** int(size), below ** int(size)


def _check(above: fmpq_poly, below: fmpq_poly) -> None:
    if max(above.degree(), below.degree()) > MAX_DEGREE or not below:
        raise Unreadable("a polynomial of too high a degree, or a division by zero")


def _roots(polynomials: list[fmpq_poly]) -> list[Number]:
    """All real roots, in order, each once; rational ones exactly."""
    factors = {tuple(factor.coeffs()): factor for each in polynomials if each for factor, _ in each.numer().factor()[1]}
    found: list[Number] = []
    with ctx.workprec(2 * START_BITS):
        for factor in factors.values():
            if factor.degree() == 1:
                found.append(fmpq(-factor[0], factor[1]))
            elif factor.degree() > 1:
                found += [root for root, _ in factor.complex_roots() if root.imag.is_zero()]
    return sorted(found, key=middle)


def middle(root: Number) -> Fraction:
    if isinstance(root, fmpq):
        return Fraction(int(root.p), int(root.q))
    mantissa, exponent = root.real.mid().man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def _places(ends: list[Number]) -> list[fmpq]:
    """A rational number below all ends, between any two, and above all."""
    if not ends:
        return [fmpq(0)]
    fractions = list(map(middle, ends))
    inner = [(one + other) / 2 for one, other in pairwise(fractions)]
    return [fmpq(each.numerator, each.denominator) for each in (fractions[0] - 1, *inner, fractions[-1] + 1)]


def _holds(cases: list[_Case], operator: str, place: Number) -> bool:
    for signs, (above, below) in cases:
        if all(_sign(of, place) in (0, sign) for of, sign in signs):
            under = _sign(below, place)
            return bool(under) and _compares(_sign(above, place) * under, operator)
    return False


def _sign(polynomial: fmpq_poly, place: Number) -> int:
    """The sign of the value at a point. A value that may be zero is zero, because the ends are its roots."""
    if isinstance(place, fmpq):
        value = polynomial(place)
        return int(value > 0) - int(value < 0)
    with ctx.workprec(2 * START_BITS):
        value = sum((acb(c) * place**power for power, c in enumerate(polynomial.coeffs())), acb(0)).real
    return int(bool(value > 0)) - int(bool(value < 0))


def _compares(sign: int, operator: str) -> bool:
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0, "!=": sign != 0}[operator]
