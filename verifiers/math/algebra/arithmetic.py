"""Numbers and matrices: exact fractions where possible, else balls that contain the true value (FLINT's Arb).

Balls can prove that two numbers differ, but not that they are equal. So `Arithmetic.needed` is the precision at which a
small term is not lost next to a large one. Values that agree at a higher precision are equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import comb, gcd, lcm, prod
from typing import Any

from flint import acb, arb, fmpq, fmpz

from olmorl.verifiers.math.algebra.tree import Unreadable

Number = Any
"""An `fmpq`, or an `acb` ball: FLINT's numbers have no types."""
Rows = tuple[tuple[Number, ...], ...]
"""A matrix."""

MAX_EXACT_BITS = 1 << 23
"""Bits of the parts of a fraction. Larger fractions become balls."""
MAX_MAGNITUDE = 1 << 40
"""The largest binary exponent of a ball."""
MAX_ARGUMENT = 1 << 14
"""The largest binary exponent of the argument of a sine or an exponential."""
MAX_EXACT_FACTORIAL = 20_000
MAX_ROOT = 10_000


def is_real(number: Number) -> bool:
    """Whether a value is certainly a real number."""
    return isinstance(number, fmpq) or bool(number.imag.is_zero())


def is_whole(number: Number) -> bool:
    """Whether a value is exactly a whole number."""
    return isinstance(number, fmpq) and number.q == 1


def magnitude(number: Number) -> int | None:
    """The binary exponent of a number; None for zero, and for a ball that may be zero."""
    if isinstance(number, fmpq):
        return number.p.bit_length() - number.q.bit_length() if number else None
    mantissa, exponent = number.abs_lower().man_exp() if number.is_finite() else (0, 0)
    return int(fmpz(mantissa).bit_length()) + int(exponent) if mantissa else None


def _significant(number: Number) -> int:
    """Bits of a fraction's parts, without trailing zeros."""
    found = 0
    for part in (abs(int(number.p)), int(number.q)):
        found += part.bit_length() - ((part & -part).bit_length() - 1 if part else 0)
    return found


class Arithmetic:
    """Calculates at FLINT's working precision, and knows which precision its results need."""

    def __init__(self) -> None:
        self.needed = 0
        """Bits. An estimate that errs on the large side."""

    def ball(self, number: Number) -> Number:
        """A number as a ball."""
        if not isinstance(number, fmpq):
            return number
        self.needed += _significant(number)
        return acb(arb(number))

    def _bounded(self, number: Number) -> Number:
        """An exact number becomes a ball when it has grown too long."""
        long = number.p.bit_length() > MAX_EXACT_BITS or number.q.bit_length() > MAX_EXACT_BITS
        return self.ball(number) if long else number

    # --- sums, products, powers ---

    def add(self, terms: list[Number | Rows]) -> Number | Rows:
        """The sum of numbers, or of matrices."""
        if any(isinstance(term, tuple) for term in terms):
            return self._add_matrices(terms)
        if all(isinstance(term, fmpq) for term in terms):
            return self._bounded(sum(terms, fmpq(0)))
        total = sum(map(self.ball, terms), acb(0))
        sizes = [size for term in (*terms, total) if (size := magnitude(term)) is not None]
        self.needed += max(sizes, default=0) - min(sizes, default=0)
        return total

    def multiply(self, one: Number | Rows, other: Number | Rows) -> Number | Rows:
        """The product of numbers or matrices."""
        if isinstance(one, tuple) and isinstance(other, tuple):
            return self._multiply_matrices(one, other)
        if isinstance(one, tuple) or isinstance(other, tuple):
            rows, scalar = (one, other) if isinstance(one, tuple) else (other, one)
            return tuple(tuple(self.multiply(cell, scalar) for cell in row) for row in rows)
        if isinstance(one, fmpq) and isinstance(other, fmpq):
            return self._bounded(one * other)
        return self.ball(one) * self.ball(other)

    def divide(self, above: Number | Rows, below: Number | Rows) -> Number | Rows:
        """A quotient. Raises ZeroDivisionError."""
        if isinstance(below, tuple) or magnitude(below) is None:
            raise ZeroDivisionError("division by zero or by a matrix")
        return self.multiply(above, 1 / below)

    def power(self, base: Number, exponent: Number) -> Number:
        """Exact for whole exponents as long as the result is of bounded size."""
        if isinstance(base, tuple) or isinstance(exponent, tuple):
            raise Unreadable("a power of a matrix")
        size = magnitude(base)
        if size is None:
            if not isinstance(exponent, fmpq) or exponent <= 0:
                raise ZeroDivisionError("zero to a power that is not positive")
            return fmpq(0) if isinstance(base, fmpq) else self._raised(base, exponent)
        if is_whole(exponent) and isinstance(base, fmpq):
            bits = (max(abs(base.p), base.q) - 1).bit_length() * abs(int(exponent.p))
            if bits <= MAX_EXACT_BITS or abs(base) == 1:
                return base ** int(exponent.p % 2 if abs(base) == 1 else exponent.p)
        return self._raised(base, exponent)

    def _raised(self, base: Number, exponent: Number) -> Number:
        base, places = self.ball(base), magnitude(exponent)
        if places is None:
            return acb(1) if not exponent else base.pow(self.ball(exponent))
        rate = magnitude(base.log()) if magnitude(base) is not None else 0
        if rate is not None:
            if places + rate > MAX_MAGNITUDE.bit_length():
                raise OverflowError("a power too large")
            self.needed += abs(places + rate)
        if is_whole(exponent):
            return base ** int(exponent.p)
        return base.pow(self.ball(exponent))

    def root(self, radicand: Number, index: Number) -> Number:
        """Exact for powers; the real one for an odd root of a negative number."""
        if not is_whole(index) or not 0 < index <= MAX_ROOT:
            return self.power(radicand, self.divide(fmpq(1), index))
        degree = int(index.p)
        if degree % 2 and is_real(radicand) and magnitude(radicand) is not None and _negative(radicand):
            return -self.root(-radicand, index)
        if isinstance(radicand, fmpq) and radicand >= 0:
            above, below = fmpz(radicand.p).root(degree), fmpz(radicand.q).root(degree)
            if above**degree == radicand.p and below**degree == radicand.q:
                return fmpq(above, below)
        ball = self.ball(radicand)
        if is_real(ball) and not _negative(ball):
            return acb(ball.real.root(degree)) if ball.real >= 0 else ball.root(degree)
        return ball.sqrt() if degree == 2 else ball.root(degree)

    def logarithm(self, argument: Number, base: Number) -> Number:
        """To the given base."""
        if magnitude(argument) is None:
            raise ZeroDivisionError("logarithm of zero")
        return self.divide(self.ball(argument).log(), self.ball(base).log())

    # --- functions ---

    def call(self, name: str, arguments: list[Number]) -> Number:
        """One of FUNCTIONS."""
        return FUNCTIONS[name](self, *arguments)

    def _factorial(self, number: Number) -> Number:
        if is_whole(number) and number < 0:
            raise ZeroDivisionError("factorial of a negative number")
        if is_whole(number) and number <= MAX_EXACT_FACTORIAL:
            return fmpq(fmpz.fac_ui(int(number.p)))
        if (magnitude(number) or 0) > MAX_MAGNITUDE.bit_length():
            raise OverflowError("a factorial too large")
        return (self.ball(number) + 1).gamma()

    def _double_factorial(self, number: Number) -> Number:
        if not is_whole(number) or not -1 <= number <= MAX_EXACT_FACTORIAL:
            raise Unreadable("a double factorial of what is no positive whole number")
        return fmpq(prod(range(int(number.p), 0, -2)))

    def _binomial(self, above: Number, below: Number) -> Number:
        if is_whole(above) and is_whole(below) and 0 <= below <= MAX_EXACT_FACTORIAL and 0 <= above <= 1 << 64:
            small = int(min(below, above - below)) if above >= below else int(below.p)
            if small * above.p.bit_length() <= MAX_EXACT_BITS:
                return fmpq(comb(int(above.p), small))
        if max(magnitude(above) or 0, magnitude(below) or 0) > MAX_MAGNITUDE.bit_length():
            raise OverflowError("a binomial coefficient too large")
        top, chosen = self.ball(above) + 1, self.ball(below) + 1
        return top.gamma() / (chosen.gamma() * (top - chosen + 1).gamma())

    def _floor(self, number: Number) -> Number:
        if isinstance(number, fmpq):
            return fmpq(number.floor())
        self.needed += max(magnitude(number) or 0, 0)
        found = number.real.floor().unique_fmpz() if is_real(number) else None
        if found is None:
            raise ArithmeticError("a number too near to a whole one to be rounded")
        return fmpq(found)

    def _absolute(self, number: Number) -> Number:
        if isinstance(number, fmpq):
            return abs(number)
        return acb(abs(number.real) if is_real(number) else abs(number))

    # --- matrices ---

    def _add_matrices(self, terms: list[Number | Rows]) -> Rows:
        shapes = {_shape(term) for term in terms}
        if len(shapes) > 1:
            raise Unreadable("a sum of matrices of several shapes")
        height, width = shapes.pop()
        return tuple(
            tuple(self.add([term[row][column] for term in terms]) for column in range(width)) for row in range(height)
        )

    def _multiply_matrices(self, one: Rows, other: Rows) -> Rows:
        if _shape(one)[1] != _shape(other)[0]:
            raise Unreadable("a product of matrices that do not fit")
        columns = list(zip(*other, strict=True))
        return tuple(
            tuple(self.add([self.multiply(a, b) for a, b in zip(row, column, strict=True)]) for column in columns)
            for row in one
        )

    def determinant(self, rows: Number | Rows) -> Number:
        """By the first row: matrices in answers are small."""
        height, width = _shape(rows)
        if height != width or height > 5:
            raise Unreadable("a determinant of a matrix that is not square, or large")
        if height == 1:
            return rows[0][0]
        minors = [tuple(row[:column] + row[column + 1 :] for row in rows[1:]) for column in range(width)]
        signs = (fmpq(1), fmpq(-1))
        products = [self.multiply(rows[0][i], self.determinant(minor)) for i, minor in enumerate(minors)]
        return self.add([self.multiply(product, signs[i % 2]) for i, product in enumerate(products)])


def _negative(number: Number) -> bool:
    return bool(number < 0) if isinstance(number, fmpq) else bool(number.real < 0)


def _of_whole_numbers(function: Callable[..., int]) -> Callable[..., Number]:
    def apply(_: Arithmetic, *numbers: Number) -> Number:
        if not all(map(is_whole, numbers)):
            raise Unreadable("not a whole number")
        return fmpq(function(*(int(number.p) for number in numbers)))

    return apply


def _extreme(largest: bool) -> Callable[..., Number]:
    def apply(arithmetic: Arithmetic, *numbers: Number) -> Number:
        if not all(map(is_real, numbers)):
            raise Unreadable("the largest of numbers that are not real")
        best = numbers[0]
        for number in numbers[1:]:
            gap = arithmetic.add([number, -best])
            if magnitude(gap) is not None and _negative(gap) != largest:
                best = number
        return best

    return apply


def _smooth(method: str, inverted: bool = False) -> Callable[[Arithmetic, Number], Number]:
    """One of Arb's functions, of arguments of bounded size.

    Args:
        inverted: of the reciprocal.
    """

    def apply(arithmetic: Arithmetic, number: Number) -> Number:
        size = magnitude(number)
        if size is not None:
            if size > MAX_ARGUMENT:
                raise OverflowError("an argument too large")
            # Near zero most functions are nearly constant, far away the hyperbolic ones are.
            arithmetic.needed += 2 * abs(size) + (3 << max(size, 0) if "h" in method and size < 20 else 0)
        argument = arithmetic.ball(arithmetic.divide(fmpq(1), number) if inverted else number)
        return getattr(argument, method)()

    return apply


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": Arithmetic._absolute, "root": Arithmetic.root, "factorial": Arithmetic._factorial,
    "double factorial": Arithmetic._double_factorial,
    "binom": Arithmetic._binomial, "floor": Arithmetic._floor, "gcd": _of_whole_numbers(gcd),
    "lcm": _of_whole_numbers(lcm), "mod": _of_whole_numbers(operator.mod),
    "max": _extreme(True), "min": _extreme(False),
    "exp": lambda arithmetic, number: arithmetic.power(acb(arb.const_e()), number),
    "Gamma": lambda arithmetic, number: arithmetic._factorial(arithmetic.add([number, fmpq(-1)])),
    "ceil": lambda arithmetic, number: -arithmetic._floor(-number),
}  # fmt: skip
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    FUNCTIONS |= {_name: _smooth(_name), f"{_name}h": _smooth(f"{_name}h")}
for _name, _of in (("sin", "csc"), ("cos", "sec"), ("tan", "cot")):
    for _kind in ("", "h"):
        FUNCTIONS |= {
            f"arc{_name}{_kind}": _smooth(f"a{_name}{_kind}"),
            f"arc{_of}{_kind}": _smooth(f"a{_name}{_kind}", inverted=True),
        }


def _shape(rows: Number | Rows) -> tuple[int, int]:
    if not isinstance(rows, tuple):
        raise Unreadable("a number where a matrix should be")
    return len(rows), len(rows[0])
