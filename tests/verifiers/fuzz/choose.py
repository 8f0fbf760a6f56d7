"""Picks an answer of the wanted truth, checks that it has it, and prints both sides."""

from __future__ import annotations

from random import Random

from mpmath import mp

from tests.verifiers.fuzz.expr import E, value
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Made
from tests.verifiers.fuzz.truth import holds


def choose(
    rng: Random, truth: bool, label: E, right: dict[str, E], wrong: dict[str, E], positive: bool = False
) -> Made | None:
    """One of the answers of the wanted truth, if it is what it was made to be."""
    answers = right if truth else wrong
    name = rng.choice(sorted(answers))
    if not holds(truth, label, answers[name], positive):
        return None
    first, second = show(rng, label, answers[name])
    return Made(name, first, second) if first != second or truth else None


def choose_near(rng: Random, truth: bool, label: E, right: dict[str, E], wrong: dict[str, E]) -> Made | None:
    """As `choose`; an answer in digits is equal within the tolerance of decimals."""
    answers = right if truth else wrong
    name = rng.choice(sorted(answers))
    if name == "digits":
        return Made(name, *show(rng, label, answers[name]))
    return choose(rng, truth, label, right, {name: answers[name]})


def digits_of(node: E, count: int = 12) -> str:
    with mp.workdps(30):
        return mp.nstr(value(node), count, strip_zeros=False)
