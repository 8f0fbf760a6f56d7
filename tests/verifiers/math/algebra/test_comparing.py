"""Equality of values, regions and units; identities made at random hold, and broken ones do not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.verifiers.math.algebra.compare import same
from olmorl.verifiers.math.algebra.evaluate import value
from olmorl.verifiers.math.algebra.latex import parse
from olmorl.verifiers.math.algebra.points import Point
from olmorl.verifiers.math.algebra.regions import region
from olmorl.verifiers.math.algebra.tree import names
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.units import conversion, unit


def agree(label: str, answer: str) -> bool:
    return same(parse(label), parse(answer), Policy())


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("2^{200}", "2^{200}+1"),
        (r"\frac{1}{2^{300}}", r"\frac{1}{2^{301}}"),
        (r"\frac{1}{900!}", r"\frac{1}{901!}"),
        ("e^{-200}", "e^{-201}"),
        (r"\sqrt{10^{20}+1}", "10^{10}"),
        ("0", "e^{-100}"),
        ("x", "x+10^{-9}"),
    ],
)
def test_numbers_that_are_near_are_not_equal(label: str, answer: str) -> None:
    assert not agree(label, answer)


@pytest.mark.parametrize("text", [r"\sin \pi", r"\sqrt2 - 2^{1/2}", r"e^{i\pi}+1", r"\ln e - 1", r"\cos\frac{\pi}{2}"])
def test_what_cancels_is_zero(text: str) -> None:
    assert agree("0", text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("(1,2]", [(1, 2, True, False)]),
        ("1 < x \\le 2", [(1, 2, True, False)]),
        ("2 \\ge x > 1", [(1, 2, True, False)]),
        ("3 - 2x < 1", [(1, float("inf"), True, True)]),
        (r"x \ne 0", [(-float("inf"), 0, True, True), (0, float("inf"), True, True)]),
        (r"\mathbb{R}\setminus[1,2)", [(-float("inf"), 1, True, True), (2, float("inf"), False, True)]),
        (r"[0,1)\cup[1,2]\cup\{5\}", [(0, 2, False, False), (5, 5, False, False)]),
        (r"[0,3]\cap(1,5)", [(1, 3, True, False)]),
        (r"\{x \in [0,9] \mid x > 4\}", [(4, 9, True, False)]),
        ("x > 1 \\text{ and } x < 2", [(1, 2, True, True)]),
        ("x < 1 \\text{ or } x > 2", [(-float("inf"), 1, True, True), (2, float("inf"), True, True)]),
    ],
)
def test_regions_by_hand(text: str, pieces: list[tuple[float, float, bool, bool]]) -> None:
    found = region(parse(text))
    assert found is not None
    assert [tuple(piece) for piece in found.pieces] == pieces


@pytest.mark.parametrize("text", ["(2,1)", "(a,b)", "2^x < 4", "x < y", "(1,2,3)", "5", r"\mathbb{Z}", "x=2"])
def test_what_is_no_region(text: str) -> None:
    assert region(parse(text)) is None


@pytest.mark.parametrize(
    ("label", "answer", "ratio"),
    [
        (" cm", " meters", 100),
        (" hours", " min", Fraction(1, 60)),
        (" km/h", " meters per second", Fraction(18, 5)),
        (" mph", " miles per hour", 1),
        (" square feet", " in^2", Fraction(1, 144)),
        (" liters", " cm^3", Fraction(1, 1000)),
        (" km/h^2", " km/h", None),
        (" apples", " oranges", None),
        (" apples", "", 1),
        (" feet", " units", 1),
        (" meters long", " \x02m\x03", 1),
    ],
)
def test_units_convert(label: str, answer: str, ratio: Fraction | int | None) -> None:
    one, other = unit(label), unit(answer)
    assert one is not None
    assert other is not None
    assert conversion(one, other) == ratio


@pytest.mark.parametrize(
    "rest", [" million", " squared", " over 3", " or 6", "x", " x", " m", " i", " 3 cm", "!", "^2", " more than 3"]
)
def test_what_is_no_unit(rest: str) -> None:
    assert unit(rest) is None


LEAVES = st.one_of(st.integers(2, 9).map(str), st.sampled_from(["x", "y", r"\pi", r"\sqrt{2}", r"\frac{3}{7}"]))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}+{pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: rf"{pair[0]}\cdot {pair[1]}"),
        st.tuples(inner, inner).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        inner.map(lambda one: rf"\left({one}\right)^{{2}}"),
        inner.map(lambda one: rf"\arctan({one})"),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_laws_of_algebra_hold_and_broken_ones_do_not(a: str, b: str, c: str) -> None:
    assert agree(f"{a}+{b}", f"{b}+{a}")
    assert agree(rf"{a}\cdot ({b}+{c})", rf"{a}\cdot {b}+{c}\cdot {a}")
    assert agree(rf"\frac{{{a}}}{{{b}}}+{c}", rf"\frac{{{a}+{b}\cdot ({c})}}{{{b}}}")
    assert not agree(f"{a}+{b}", f"{a}+{b}+1")
    assert not agree(f"z\\cdot ({a})", f"w\\cdot ({a})")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=6), st.randoms())
def test_sets_have_no_order_and_tuples_do(numbers: list[int], chance: st.DataObject) -> None:
    shuffled = numbers[:]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    text, other = ", ".join(map(str, numbers)), ", ".join(map(str, shuffled))
    assert agree(rf"\{{{text}\}}", rf"\{{{other}\}}")
    assert agree(f"({text})", f"({other})") == (numbers == shuffled)


def test_variables_are_told_apart_by_their_whole_names() -> None:
    assert names(parse(r"x_1 + x_{12} + \alpha + A + a")) == {"x_1", "x_12", "\\alpha", "A", "a"}
    assert value(parse("x"), Point(3)) == value(parse("x"), Point(3)) != value(parse("x"), Point(4))
