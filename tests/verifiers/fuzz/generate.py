"""All families, and the stream of pairs that a seed stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.verifiers.fuzz import (
    algebra,
    constants,
    dressed,
    functions,
    lists,
    magnitudes,
    numerals,
    quantities,
    rationals,
    regions,
    relations,
    sentences,
    trees,
    words,
)
from tests.verifiers.fuzz.pairs import Families, Pair

FAMILIES: Families = {
    **numerals.FAMILIES,
    **rationals.FAMILIES,
    **quantities.FAMILIES,
    **magnitudes.FAMILIES,
    **constants.FAMILIES,
    **algebra.FAMILIES,
    **functions.FAMILIES,
    **relations.FAMILIES,
    **regions.FAMILIES,
    **lists.FAMILIES,
    **trees.FAMILIES,
    **dressed.FAMILIES,
    **words.FAMILIES,
    **sentences.FAMILIES,
}
MAX_DRAWS = 200
"""For one pair; a family that needs more is broken."""


def pairs(count: int, seed: int, only: Sequence[str] = ()) -> Iterator[Pair]:
    """Pairs of all families in turn; the same seed makes the same pairs."""
    names = list(only) or sorted(FAMILIES)
    for index in range(count):
        yield one(names[index % len(names)], Random(f"{seed} {index}"))


def one(family: str, rng: Random) -> Pair:
    truth = rng.random() < 0.5
    for _ in range(MAX_DRAWS):
        made = FAMILIES[family](rng, truth)
        if made is not None:
            return Pair(family, made.rewriting, made.label, made.answer, truth, made.sentence)
    raise RuntimeError(f"the family {family!r} makes no {'equal' if truth else 'unequal'} pair")
