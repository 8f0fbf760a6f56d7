"""Balls and the precision they need; inequalities solved by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flint import acb, arb, ctx, fmpq

from olmorl.verifiers.math.algebra.arithmetic import Arithmetic
from olmorl.verifiers.math.algebra.inequalities import solve
from olmorl.verifiers.math.algebra.latex import parse
from olmorl.verifiers.math.algebra.tree import Node, Unreadable

X = Node("name", "x")


def test_exact_numbers_stay_exact() -> None:
    arithmetic = Arithmetic()
    assert arithmetic.add([fmpq(1, 3), fmpq(1, 6)]) == fmpq(1, 2)
    assert arithmetic.power(fmpq(2, 3), fmpq(-2)) == fmpq(9, 4)
    assert arithmetic.root(fmpq(-27, 8), fmpq(3)) == fmpq(-3, 2)
    assert arithmetic.call("binom", [fmpq(10), fmpq(3)]) == fmpq(120)
    assert arithmetic.needed == 0


def test_a_sum_needs_the_bits_between_its_largest_and_its_smallest_term() -> None:
    arithmetic = Arithmetic()
    arithmetic.add([fmpq(2) ** 300, acb(2).sqrt()])
    assert 290 < arithmetic.needed < 320
    cancelled = Arithmetic()
    with ctx.workprec(400):
        cancelled.add([acb(3).exp(), -acb(3).exp() + acb(2) ** -200])
    assert 195 < cancelled.needed < 215


@pytest.mark.parametrize("bad", [lambda a: a.divide(fmpq(1), fmpq(0)), lambda a: a.divide(fmpq(1), acb(0)),
                                 lambda a: a.logarithm(fmpq(0), fmpq(2)), lambda a: a.power(fmpq(0), fmpq(-1)),
                                 lambda a: a.divide(fmpq(1), acb(arb(0, 1e-30)))])  # fmt: skip
def test_division_by_what_may_be_zero_has_no_value(bad: object) -> None:
    with pytest.raises(ZeroDivisionError):
        bad(Arithmetic())  # type: ignore[operator]


def test_a_power_out_of_bounds_is_refused_before_it_is_calculated() -> None:
    with pytest.raises(OverflowError):
        Arithmetic().power(fmpq(9), fmpq(9) ** 30)


@pytest.mark.parametrize(
    ("difference", "operator", "ends", "at_ends", "between"),
    [
        ("x^2-1", "<=", [-1, 1], (True, True), (False, True, False)),
        ("x^2-1", ">", [-1, 1], (False, False), (True, False, True)),
        ("x^2", ">", [0], (False,), (True, True)),
        ("x^2+1", ">", [], (), (True,)),
        (r"\frac{1}{x}-1", ">=", [0, 1], (False, True), (False, True, False)),
        ("|x-2|-3", "<", [-1, 2, 5], (False, True, False), (False, True, True, False)),
        ("|x|-|x-4|", "<", [0, 2, 4], (True, False, False), (True, True, False, False)),
        (r"\frac{x-1}{x-1}", ">", [1], (False,), (True, True)),
    ],
)
def test_inequalities_by_hand(
    difference: str, operator: str, ends: list[int], at_ends: tuple[bool, ...], between: tuple[bool, ...]
) -> None:
    solution = solve(parse(difference), operator, X)
    assert [Fraction(int(end.p), int(end.q)) for end in solution.ends] == ends
    assert (solution.at_ends, solution.between) == (at_ends, between)


def test_irrational_roots_are_balls_that_hold_them() -> None:
    first, second = solve(parse("x^2-2"), "<", X).ends
    with ctx.workprec(400):
        assert (first.real + arb(2).sqrt()).contains(0)
        assert (second.real - arb(2).sqrt()).contains(0)


@pytest.mark.parametrize(
    "text", [r"\sqrt{x}-1", "2^x-4", r"\sin x", "x^{200}-1", "xy-1", "||||x|-1|-1|-1|-|x-5|-|x-6|"]
)
def test_what_is_not_made_of_polynomials_is_left_alone(text: str) -> None:
    with pytest.raises(Unreadable):
        solve(parse(text), "<", X)
