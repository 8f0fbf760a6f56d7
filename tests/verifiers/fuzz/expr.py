"""Expression trees with exact values: Fractions where a value is rational, as many digits as asked for otherwise.

Trees are built by arithmetic on objects, never by reading text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mpmath import mp

Value = Any
"""A Fraction, or a number of mpmath."""
MAX_EXACT_BITS = 8_000_000


@dataclass(frozen=True)
class E:
    """A node: its kind, its operands, and the data of a leaf."""

    kind: str
    args: tuple[E, ...] = ()
    data: Any = None

    def __add__(self, other: E | int | Fraction) -> E:
        parts = [part for side in (self, lift(other)) for part in (side.args if side.kind == "sum" else (side,))]
        return E("sum", tuple(parts))

    def __radd__(self, other: int | Fraction) -> E:
        return lift(other) + self

    def __neg__(self) -> E:
        return lift(-self.data) if self.kind == "number" else E("negative", (self,))

    def __sub__(self, other: E | int | Fraction) -> E:
        return self + -lift(other)

    def __rsub__(self, other: int | Fraction) -> E:
        return lift(other) - self

    def __mul__(self, other: E | int | Fraction) -> E:
        parts = [part for side in (self, lift(other)) for part in (side.args if side.kind == "product" else (side,))]
        return E("product", tuple(parts))

    def __rmul__(self, other: int | Fraction) -> E:
        return lift(other) * self

    def __truediv__(self, other: E | int) -> E:
        return E("quotient", (self, lift(other)))

    def __rtruediv__(self, other: int) -> E:
        return lift(other) / self

    def __pow__(self, other: E | int | Fraction) -> E:
        return E("power", (self, lift(other)))


def lift(value: E | int | Fraction) -> E:
    return value if isinstance(value, E) else E("number", (), Fraction(value))


def over(numerator: int, denominator: int) -> E:
    """A quotient that is not reduced."""
    return E("quotient", (lift(numerator), lift(denominator)))


def var(name: str) -> E:
    return E("variable", (), name)


def written(decimal: str) -> E:
    """A decimal as it is written."""
    return E("decimal", (), decimal)


def root(inside: E | int, degree: int = 2) -> E:
    return E("root", (lift(inside),), degree)


def call(name: str, inside: E | int | Fraction) -> E:
    return E("call", (lift(inside),), name)


def log(base: E | int, inside: E | int | Fraction) -> E:
    return E("log", (lift(base), lift(inside)))


def factorial(n: E | int) -> E:
    return E("factorial", (lift(n),))


def binomial(n: E | int, k: E | int) -> E:
    return E("binomial", (lift(n), lift(k)))


PI, EULER, IMAGINARY = E("constant", (), "pi"), E("constant", (), "e"), E("constant", (), "i")


def variables(node: E) -> frozenset[str]:
    found = frozenset[str]().union(*map(variables, node.args))
    return found | {node.data} if node.kind == "variable" else found


# --- values -------------------------------------------------------------------------------------


def value(node: E, at: dict[str, Fraction] | None = None) -> Value:
    """The value with the present precision of mpmath. Raises ArithmeticError where there is none."""
    if node.kind == "number":
        return node.data
    if node.kind == "decimal":
        return Fraction(node.data)
    if node.kind == "variable":
        return (at or {})[node.data]
    if node.kind == "constant":
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[node.data]
    return _OPERATIONS[node.kind](node, [value(part, at) for part in node.args])


def floating(number: Value) -> Value:
    return mp.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def _sum(_: E, parts: list[Value]) -> Value:
    total = sum((part for part in parts if isinstance(part, Fraction)), Fraction(0))
    others = [part for part in parts if not isinstance(part, Fraction)]
    return sum(others, floating(total)) if others else total


def _product(_: E, parts: list[Value]) -> Value:
    result = Fraction(1)
    for part in parts:
        exact = isinstance(result, Fraction) and isinstance(part, Fraction)
        result = result * part if exact else floating(result) * floating(part)
    return result


def _quotient(_: E, parts: list[Value]) -> Value:
    above, below = parts
    if not below:
        raise ZeroDivisionError
    if isinstance(above, Fraction) and isinstance(below, Fraction):
        return above / below
    if abs(floating(below)) < mp.mpf(10) ** (10 - mp.dps):
        raise ZeroDivisionError
    return floating(above) / floating(below)


def _power(_: E, parts: list[Value]) -> Value:
    base, exponent = parts
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent))
        if bits > MAX_EXACT_BITS or (not base and exponent <= 0):
            raise OverflowError
        return base ** int(exponent)
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and base > 0:
        exact = _exact_root(base, exponent.denominator)
        if exact is not None:
            return exact ** int(exponent.numerator)
    base, exponent = floating(base), floating(exponent)
    if mp.im(base) == 0 and mp.re(base) < 0 and not mp.isint(exponent):
        raise ArithmeticError("people differ about powers of negative numbers")
    return mp.power(base, exponent)


def _root(node: E, parts: list[Value]) -> Value:
    (inside,) = parts
    exact = _exact_root(inside, node.data) if isinstance(inside, Fraction) and inside >= 0 else None
    if exact is not None:
        return exact
    if node.data % 2 and mp.im(floating(inside)) == 0 and mp.re(floating(inside)) < 0:
        return -mp.root(-mp.re(floating(inside)), node.data)
    return mp.root(floating(inside), node.data)


def _exact_root(number: Fraction, degree: int) -> Fraction | None:
    tops = [_integer_root(part, degree) for part in (number.numerator, number.denominator)]
    return None if None in tops else Fraction(tops[0], tops[1])


def _integer_root(number: int, degree: int) -> int | None:
    if number.bit_length() > 200:
        return None
    guess = round(number ** (1 / degree))
    return next((near for near in (guess - 1, guess, guess + 1) if near >= 0 and near**degree == number), None)


def _call(node: E, parts: list[Value]) -> Value:
    (inside,) = parts
    if node.data == "abs":
        return abs(inside)
    if node.data == "exp":
        return mp.exp(floating(inside))
    if node.data == "ln":
        return mp.ln(floating(inside))
    return getattr(mp, {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}.get(node.data, node.data))(
        floating(inside)
    )


def _log(_: E, parts: list[Value]) -> Value:
    return mp.ln(floating(parts[1])) / mp.ln(floating(parts[0]))


def _whole(number: Value) -> int:
    if not isinstance(number, Fraction) or number.denominator != 1 or not 0 <= number < 100_000:
        raise ArithmeticError("not a count")
    return int(number)


_OPERATIONS = {
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "power": _power,
    "root": _root,
    "call": _call,
    "log": _log,
    "negative": lambda _, parts: -parts[0],
    "factorial": lambda _, parts: Fraction(math.factorial(_whole(parts[0]))),
    "binomial": lambda _, parts: Fraction(math.comb(_whole(parts[0]), _whole(parts[1]))),
}
