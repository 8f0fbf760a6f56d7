"""Reads the unit after a number, and converts units. A word that is no unit names a counted thing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from olmorl.verifiers.math.notation import END_TEXT, TEXT, unmark
from olmorl.verifiers.math.words import changed_behind

ONE = Fraction(1)
Dimensions = tuple[tuple[str, int], ...]
"""Powers of base dimensions, sorted. A word that is no known unit is a dimension of its own."""


class Unit(NamedTuple):
    """The unit of a number, in base units."""

    factor: Fraction = ONE
    dimensions: Dimensions = ()


NO_UNIT = Unit()
NO_LETTERS = frozenset[str]()

_PREFIXES = {
    "": ("", Fraction(1)), "n": ("nano", Fraction(1, 10**9)), "μ": ("micro", Fraction(1, 10**6)),
    "m": ("milli", Fraction(1, 1000)), "c": ("centi", Fraction(1, 100)), "d": ("deci", Fraction(1, 10)),
    "h": ("hecto", Fraction(100)), "k": ("kilo", Fraction(1000)), "M": ("mega", Fraction(10**6)),
    "G": ("giga", Fraction(10**9)),
}  # fmt: skip


def _known() -> tuple[dict[str, Unit], dict[str, Unit]]:
    """Symbols, whose case counts, and names, whose case does not."""
    symbols, names = {"F": NO_UNIT}, {"unit": NO_UNIT}
    table = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))
    for powers, units in table.items():
        bases = ((power.rstrip("-0123456789"), power) for power in powers.split(","))
        dimensions = tuple(sorted((base, int(power[len(base) :] or 1)) for base, power in bases))
        for factor, symbol, called in units:
            letter, _, taken = symbol.partition(":")
            for prefix in ("", *taken):
                word, scale = _PREFIXES[prefix]
                prefixed = Unit(Fraction(factor) * scale, dimensions)
                names |= dict.fromkeys((word + name for name in called.split() if not word or len(name) > 3), prefixed)
                symbols |= {prefix + letter: prefixed} if letter else {}
    names["\x05"] = names["dollar"]
    return symbols, names


_SYMBOLS, _NAMES = _known()
_LETTERS = {symbol: one for symbol, one in (_NAMES | _SYMBOLS).items() if len(symbol) == 1 and one.dimensions}
_BASE = {dimension for one in _NAMES.values() for dimension, _ in one.dimensions}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_PIECE = re.compile(
    r"(?P<word>(?:°|degrees?)\s?(?:[cfCF](?![a-zA-Z])|[cC]elsius|[fF]ahrenheit)|[A-Za-zμÅΩ]+|[\x05¢€£¥₹°])\.?(?:\s*\^\s*\{?(?P<power>-?\d)\}?|(?P<digit>\d)(?!\d))?"
    r"|(?P<slash>/)|[\s.*()-]+"
)
_SIGNS = re.compile(
    r"\^\\circ ?|\\(?:mu|Omega|AA|cdot|times)(?![a-zA-Z]) ?|\\frac\s*\{([^{}\d]{1,40})\}\s*\{([^{}]{1,40})\}"
)
_PLAIN = {"^\\circ": "°", "\\mu": "μ", "\\Omega": "Ω", "\\AA": "Å", "\\cdot": "*", "\\times": "*"}
_PER = ("per", "a", "an", "each", "every")


class Measured(NamedTuple):
    """The text after a number: its unit, then words that do not change its value."""

    unit: Unit
    remark: str


@lru_cache(4096)
def measured(rest: str, letters: frozenset[str] = NO_LETTERS) -> Measured | None:
    """The longest unit at the start of normalised `rest`. None if a letter or a sign there belongs to a formula.

    Args:
        letters: the single letters that are units.
    """
    if not rest.strip():
        return Measured(NO_UNIT, "")
    marked = rest.lstrip().startswith(TEXT)
    text = unmark(_SIGNS.sub(lambda m: f"{m[1]}/{m[2]}" if m[1] else _PLAIN[m[0].strip()], rest))
    text = text.strip()
    text = text.replace("US dollar", "dollar").replace("U.S. dollar", "dollar")
    factors, end = _factors(text)
    bare = [word for word, _ in factors if len(word) == 1 and word.isalpha() and not marked]
    if factors and (len(bare) < len(factors) or letters.issuperset(bare)):
        return Measured(_product(factors), text[end:])
    first = (text.split(maxsplit=1) or [""])[0].strip(".,;:!")
    if not marked and len(first) == 1 and first.isalpha() and first not in _PER:
        return None
    nouns = {f"counted {_singular(word.lower())}" for word in text.split() if len(word) > 2 and word.isalpha()}
    touches = not marked and text[:1].isalpha() and rest[:1].isalpha()
    return (
        None
        if touches and len(first) < MIN_WORD
        else Measured(Unit(ONE, tuple((noun, 1) for noun in sorted(nouns))), text)
    )


MIN_WORD = 3
"""Letters of a word that may touch a number."""


def unit(rest: str) -> Unit | None:
    """The unit after a number, if nothing else stands there. Words that are no unit must be harmless."""
    found = measured(rest)
    if found is None or any(not (sign.isalpha() or sign in " .,-'/") for sign in found.remark):
        return None
    words = found.remark.split()
    return None if changed_behind(found.remark) or (words and words[0] in SCALES) else found.unit


def shown(text: str) -> Iterator[Unit]:
    """The units that a text names beyond doubt: by a word, by several letters, or as text behind a number."""
    for piece in _NAMED.finditer(text):
        found = named((piece["word"] or piece["text"]).strip())
        if found is not None and found.dimensions and piece["word"] != "in":
            yield found
            yield _product(_factors(unmark(text[piece.start() : piece.start() + 40]).lstrip())[0])


_NAMED = re.compile(
    rf"(?<![a-zA-Z\\])(?P<word>[a-zA-Z]{{2,}}|[€£¥₹¢°%])(?![a-zA-Z])|(?:{TEXT}|/|\^\d)(?P<text>\s*[a-zA-Zμ°Ω])(?=\s*[{END_TEXT}/^])"
)


@lru_cache(256)
def letters_of(units: frozenset[Unit]) -> frozenset[str]:
    """The single letters that measure what one of these units measures."""
    bases = {base for one in units for base, _ in one.dimensions}
    return frozenset(symbol for symbol, one in _LETTERS.items() if bases.issuperset(base for base, _ in one.dimensions))


def conversion(label: Unit, answer: Unit) -> Fraction | None:
    """The factor from the answer's unit to the label's; None when they do not convert.

    Words that are no known units contradict each other only when they have no word in common.
    """
    if not label.dimensions or not answer.dimensions or label == answer:
        return ONE
    if label.dimensions == answer.dimensions:
        return answer.factor / label.factor
    known = [is_known(one) for one in (label, answer)]
    if any(known):
        return None if all(known) else ONE
    nouns, others = ({name for name, _ in one.dimensions} for one in (label, answer))
    return ONE if nouns & others else None


def is_known(one: Unit) -> bool:
    """Whether it is a known unit, and not only a word."""
    return any(name in _BASE for name, _ in one.dimensions)


def named(word: str) -> Unit | None:
    """A symbol as written, or a name in any case and number."""
    if found := _SYMBOLS.get(word):
        return found
    lower = word.lower()
    return _NAMES.get(lower) or _NAMES.get(_singular(lower)) or (_SYMBOLS.get(lower) if len(lower) > 1 else None)


def _factors(text: str) -> tuple[list[tuple[str, int]], int]:
    """The known units at the start with their powers, and where they end."""
    factors: list[tuple[str, int]] = []
    position, end, sign, coming = 0, 0, 1, 1
    while (piece := _PIECE.match(text, position)) is not None:
        position = piece.end()
        word = (piece["word"] or "").replace(" ", "")
        if word[:1] == "°" or (word.startswith("degree") and len(word) > len("degrees")):
            word = "°" + word.removeprefix("°").removeprefix("degree").removeprefix("s")[:1].lower()
        if piece["slash"] or (word in _PER and factors):
            sign = -1
        elif word in ("squared", "cubed") and factors:
            factors[-1], end = (factors[-1][0], factors[-1][1] * _POWERS[word]), position
        elif word.lower() in _POWERS:
            coming = _POWERS[word.lower()]
        elif word and (named(word) is None or (word == "in" and text[position : position + 2].strip())):
            break
        elif word:
            factors.append((word, sign * int(piece["power"] or piece["digit"] or coming)))
            sign, coming, end = 1, 1, position
    return factors, end


def _product(factors: list[tuple[str, int]]) -> Unit:
    factor, powers = Fraction(1), dict[str, int]()
    for word, power in factors:
        known = named(word) or NO_UNIT
        factor *= known.factor**power
        for dimension, exponent in known.dimensions:
            powers[dimension] = powers.get(dimension, 0) + exponent * power
    return Unit(factor, tuple(sorted((name, power) for name, power in powers.items() if power)))


def _singular(word: str) -> str:
    if word in _NAMES or word.removesuffix("s") in _NAMES:
        return word if word in _NAMES else word.removesuffix("s")
    return word.removesuffix("es") if word.removesuffix("es") in _NAMES else word.removesuffix("s")
