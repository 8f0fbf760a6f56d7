"""The generator: its pairs are reproducible, have both sides in every family, and are what they claim to be."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest

from tests.verifiers.fuzz.expr import EULER, IMAGINARY, PI, E, binomial, call, factorial, lift, log, over, root, var
from tests.verifiers.fuzz.generate import FAMILIES, one, pairs
from tests.verifiers.fuzz.judge import Judged
from tests.verifiers.fuzz.latex import Printer, show
from tests.verifiers.fuzz.pairs import Pair
from tests.verifiers.fuzz.report import ERROR, UNPAID, WRONG, counts, disagreements, grouped
from tests.verifiers.fuzz.trees import RULES
from tests.verifiers.fuzz.truth import equal

X, Y = var("x"), var("y")


def test_a_seed_stands_for_its_pairs() -> None:
    assert list(pairs(300, 5)) == list(pairs(300, 5))
    assert list(pairs(300, 5)) != list(pairs(300, 6))


def test_every_family_has_equal_and_unequal_pairs_of_several_rewritings() -> None:
    found = list(pairs(60 * len(FAMILIES), 3))
    sides = Counter((pair.family, pair.truth) for pair in found)
    assert {family for family, _ in sides} == set(FAMILIES)
    assert min(sides[family, truth] for family in FAMILIES for truth in (True, False)) >= 15
    assert len({(pair.family, pair.rewriting) for pair in found}) > 4 * len(FAMILIES)


def test_an_unequal_answer_is_never_spelled_as_its_label() -> None:
    same = [
        pair
        for pair in pairs(8000, 4)
        if not pair.truth and pair.label.replace(" ", "") == pair.answer.replace(" ", "")
    ]
    assert same == []


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_found_by_its_name(family: str) -> None:
    assert one(family, Random(1)).family == family


@pytest.mark.parametrize(
    ("one", "other", "truth"),
    [
        (root(8), 2 * root(2), True),
        (root(8), 2 * root(3), False),
        (lift(2) ** 1_000_000, lift(2) ** 1_000_000 - 1, False),
        (lift(2) ** 1_000_000, lift(4) ** 500_000, True),
        (lift(1), 1 - EULER ** lift(-100), False),
        (lift(10) ** 40, lift(10) ** 40 + root(2), False),
        (root(X**2), X, False),
        (root(X**2), call("abs", X), True),
        ((X + Y) ** 2, X**2 + 2 * X * Y + Y**2, True),
        ((X + 10) ** 50, (X + 10) ** 50 + 1, False),
        (binomial(6, 2), lift(15), True),
        (factorial(20), 20 * factorial(19), True),
        (log(2, 8), lift(3), True),
        (EULER ** (PI * IMAGINARY), lift(-1), True),
        (lift(8) ** over(1, 3), lift(2), True),
        (root(-8, 3), lift(-2), True),
        (1 / (X - X), lift(1), None),
    ],
)
def test_equality_is_exact(one: E, other: E, truth: bool | None) -> None:
    assert equal(one, other) is truth


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_keeps_the_value_and_changes_some_expression(rule: str) -> None:
    trees = [X + Y - 3, X * (Y - 2), (X + Y) / (X + 1), (X + 1) ** 3, root(X**2 + 1, 3), call("sin", X), call("abs", X)]
    after = [RULES[rule](Random(2), tree) for tree in trees]
    assert all(equal(tree, other) for tree, other in zip(trees, after, strict=True))
    assert after != trees


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (2 * X + 1, "2x+1"),
        (X - (Y + 1), "x-(y+1)"),
        (-(X + Y), "-(x+y)"),
        ((X + 1) * (X - 2), "(x+1)(x-2)"),
        (2 * lift(3) ** X, r"2\cdot 3^{x}"),
        (lift(Fraction(-1, 2)) ** 2, r"(-\frac{1}{2})^{2}"),
        (factorial(X + 1), "(x+1)!"),
        (X * lift(-3), "x(-3)"),
        (root(X, 3) ** 2, r"(\sqrt[3]{x})^{2}"),
        (var("t") * var("a") * var("n"), r"ta \cdot n"),
    ],
)
def test_a_tree_is_printed_so_that_it_means_itself(node: E, text: str) -> None:
    styles = {Printer(Random(seed), plain=True)(node).replace(" ", "") for seed in range(60)}
    assert text.replace(" ", "") in styles


def test_one_tree_has_many_spellings() -> None:
    assert len({show(Random(seed), (X + 1) / 2 * PI)[0] for seed in range(200)}) > 20


def test_outcomes_are_counted_by_family() -> None:
    equal_pair, other_pair = (Pair("a", "r", "1", "2", truth) for truth in (True, False))
    judged = [
        Judged(equal_pair, 1.0, "number"),
        Judged(equal_pair, 0.0, "number"),
        Judged(other_pair, 1.0, "algebra"),
        Judged(other_pair, None, "", "label"),
        Judged(other_pair, 0.0, "limit"),
    ]
    assert counts(judged)["a"] == {"pairs": 5, "equal": 2, "agrees": 1, UNPAID: 1, WRONG: 1, ERROR: 2}
    assert disagreements(judged)[0].outcome == ERROR
    assert "paid though wrong: a, r (1)" in grouped(judged)
