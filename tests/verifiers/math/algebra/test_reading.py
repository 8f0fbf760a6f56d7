"""The tree that an answer is read into: what binds what, and what is no mathematics."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from flint import acb, arb, ctx, fmpq

from olmorl.verifiers.math.algebra.evaluate import value
from olmorl.verifiers.math.algebra.latex import parse
from olmorl.verifiers.math.algebra.tree import Unreadable


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2+3*4", 14),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^{-1}", Fraction(1, 2)),
        ("6/2*3", 9),
        ("1/2(4)", 2),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{20}", Fraction(1, 20)),
        (r"\frac123", Fraction(3, 2)),
        (r"1\frac12", Fraction(3, 2)),
        (r"2\cdot 1\frac12", 3),
        ("4 2/3", Fraction(14, 3)),
        ("-4 2/3", Fraction(-14, 3)),
        (r"2\frac{3}{2}", 3),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("1,234.5", Fraction(2469, 2)),
        ("1.5e3", 1500),
        ("3!!", 3),
        (r"\binom{5}{2}", 10),
        (r"{5 \choose 2}", 10),
        (r"|3-5|", 2),
        (r"||2|-|5||", 3),
        (r"\lfloor -2.5 \rfloor", -3),
        (r"\lceil 2.1 \rceil", 3),
        (r"\sqrt{\frac{9}{16}}", Fraction(3, 4)),
        (r"\sqrt[3]{-27}", -3),
        ("sqrt(16)", 4),
        (r"\gcd(12, 18)", 6),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", -2),
        (r"\log_2 8", 3),
        (r"\cos 60^\circ", Fraction(1, 2)),
        (r"\sin^2 1 + \cos^2 1", 1),
        (r"50\%", Fraction(1, 2)),
        ("3:4", Fraction(3, 4)),
    ],
)
def test_values_by_hand(text: str, number: Fraction | int) -> None:
    exact = Fraction(number)
    with ctx.workprec(256):
        difference = abs(acb(value(parse(text))) - acb(arb(fmpq(exact.numerator, exact.denominator))))
        assert difference.contains(0)
        assert difference < arb(10) ** -40


@pytest.mark.parametrize(
    "text",
    ["", "3 4", r"\frac{1}{", r"\frac{1}", r"\sqrt", "(1", "1)", "{1", "+", "2+", "|2", r"\{1", "2^", "x_",
     r"\begin{pmatrix}1", r"\begin{pmatrix}1&2\\3\end{pmatrix}", r"\begin{picture}1\end{picture}", "'", r"\left(",
     "(" * 50 + "1", "5" + "!" * 200],
)  # fmt: skip
def test_what_is_not_mathematics_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


@pytest.mark.parametrize(
    ("text", "kind", "brackets", "length"),
    [
        ("1, 2 and 3", "list", "", 3),
        ("1 or 2", "list", "or", 2),
        ("(1, 2)", "list", "()", 2),
        ("[1, 2)", "list", "[)", 2),
        (r"\{1, 2\}", "list", "{}", 2),
        (r"\langle 1, 2\rangle", "list", "()", 2),
        (r"1 \pm \sqrt2", "list", "", 2),
        (r"\{1 \pm \sqrt2, 5\}", "list", "{}", 3),
        (r"(\pm 1, 2)", "list", "", 2),
        ("(1,234)", "list", "()", 2),
    ],
)
def test_lists(text: str, kind: str, brackets: str, length: int) -> None:
    tree = parse(text)
    assert (tree.kind, tree.value, len(tree.parts)) == (kind, brackets, length)


def test_a_minus_plus_goes_against_the_plus_minus() -> None:
    both = parse(r"1 \pm 2 \mp 3")
    assert [value(one) for one in both.parts] == [0, 2]


def test_reading_takes_microseconds_for_each_character() -> None:
    text = "+".join(rf"\frac{{{n}x^{n}}}{{{n + 1}}}" for n in range(1, 100))
    started = time.process_time()
    parse(text)
    assert time.process_time() - started < len(text) * 500e-6
