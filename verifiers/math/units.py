"""Reads the unit after a number, and converts units. A word that is no unit names a counted thing."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.math.notation import END_TEXT, TEXT, unmark
from olmorl.verifiers.math.words.wording import harmless_behind, words

ONE = Fraction(1)
Dimensions = tuple[tuple[str, int], ...]
"""Powers of base dimensions, sorted. A word that is no known unit is a dimension of its own."""


class Unit(NamedTuple):
    """The unit of a number, in base units."""

    factor: Fraction = ONE
    dimensions: Dimensions = ()


NO_UNIT = Unit()

# Factor, dimensions, symbol and its prefixes, names. Units that take no prefix have names only.
_TABLE = """
1                         length               m:nμmcdk  meter metre
127/5000                  length               -         in inch inche
381/1250                  length               -         ft foot feet
1143/1250                 length               -         yd yard
201168/125                length               -         mi mile
1/10000000000             length               Å         angstrom
10000                     length2              -         hectare
316160658/78125           length2              -         acre
1/1000                    length3              L:μmcdk   l liter litre
1/1000000                 length3              -         ml cc
1/100000                  length3              -         cl
1/10000                   length3              -         dl
473176473/125000000000    length3              -         gal gallon
473176473/500000000000    length3              -         quart qt
473176473/1000000000000   length3              -         pint pt
473176473/2000000000000   length3              -         cup
473176473/32000000000000  length3              -         tablespoon tbsp
473176473/96000000000000  length3              -         teaspoon tsp
1                         mass                 g:μmk     gram gramme
1000                      mass                 -         kilo
1000000                   mass                 -         tonne
45359237/100000           mass                 -         lb pound
45359237/1600000          mass                 -         oz ounce
1                         time                 s:nμm     sec second
60                        time                 -         min minute
3600                      time                 -         h hr hour
86400                     time                 -         day
604800                    time                 -         week wk
1                         months               -         month
12                        months               -         year yr
1                         money                -         \x05 dollar usd buck
1/100                     money                -         ¢ cent penny pennie
1/20                      money                -         nickel
1/10                      money                -         dime
1                         euro                 -         € euro eur
1                         sterling             -         £ gbp quid
1                         yen                  -         ¥ yen jpy
1                         rupee                -         ₹ rupee inr
1                         angle                -         ° degree deg
1                         radian               -         rad radian
1                         celsius              -         °c
1                         fahrenheit           -         °f
1                         kelvin               K         kelvin
1                         current              A:μm      ampere amp
1                         amount               mol:mk    mole
1000                      length,mass,time-2   N:mkM     newton
1000                      length2,mass,time-2  J:mkM     joule
3600000000                length2,mass,time-2  -         kwh
1000                      length2,mass,time-3  W:mkM     watt
1000                      length-1,mass,time-2 Pa:hkM    pascal
101325000                 length-1,mass,time-2 -         atm atmosphere
100000000                 length-1,mass,time-2 -         bar
4184                      length2,mass,time-2  -         cal calorie
4184000                   length2,mass,time-2  -         kcal kilocalorie
1000                      length2,mass,time-2  -         newtonmeter
1                         length-1             D         dioptre diopter
1                         time-1               Hz:kMG    hertz
1000                      length2,mass,time-3,current-1 V:mk volt
1000                      length2,mass,time-3,current-2 Ω:kM ohm
1397/3125                 length,time-1        -         mph
5/18                      length,time-1        -         kph kmh
"""
_PREFIXES = {
    "": ("", Fraction(1)), "n": ("nano", Fraction(1, 10**9)), "μ": ("micro", Fraction(1, 10**6)),
    "m": ("milli", Fraction(1, 1000)), "c": ("centi", Fraction(1, 100)), "d": ("deci", Fraction(1, 10)),
    "h": ("hecto", Fraction(100)), "k": ("kilo", Fraction(1000)), "M": ("mega", Fraction(10**6)),
    "G": ("giga", Fraction(10**9)),
}  # fmt: skip


def _known() -> tuple[dict[str, Unit], dict[str, Unit]]:
    """Symbols, whose case counts, and names, whose case does not."""
    symbols, names = {"C": NO_UNIT, "F": NO_UNIT}, {"unit": NO_UNIT}
    for factor, powers, symbol, *called in map(str.split, _TABLE.strip().split("\n")):
        found = (re.fullmatch(r"([a-z]+)(-?\d)?", power) for power in powers.split(","))
        dimensions = tuple(sorted((power[1], int(power[2] or 1)) for power in found if power))
        letter, _, taken = symbol.partition(":")
        for prefix in ("", *taken):
            word, scale = _PREFIXES[prefix]
            prefixed = Unit(Fraction(factor) * scale, dimensions)
            names |= dict.fromkeys((word + name for name in called if not word or len(name) > 3), prefixed)
            if letter != "-":
                symbols[prefix + letter] = prefixed
    return symbols, names


_SYMBOLS, _NAMES = _known()
_BASE = {dimension for one in _NAMES.values() for dimension, _ in one.dimensions}
FOOT, INCH, DOLLARS, YEAR = (_NAMES[name] for name in ("foot", "inch", "dollar", "year"))
_SHORT = {
    "mm", "cm", "dm", "km", "in", "ft", "yd", "mi", "mg", "kg", "lb", "oz", "ms", "hr", "wk", "yr", "ml", "cl", "dl",
    "cc", "qt", "pt",
}  # fmt: skip
MULTI_LETTER = tuple(
    sorted(
        _SHORT | {name for name in _NAMES if len(name) > 2 and name.isascii() and name.isalpha()},
        key=lambda name: (len(name), name),
    )
)
_TIGHT = set("mhgslL")
"""Letters that are units when they touch a number; elsewhere a letter there is a variable."""

SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_FILLERS = {
    "of", "the", "a", "an", "in", "total", "each", "long", "wide", "tall", "high", "deep", "old", "away", "later",
    "ago", "approximately", "approx", "exactly", "about", "only", "different", "possible", "distinct", "more", "less",
    "fewer", "remaining", "left", "altogether", "per", "for", "to", "and", "every", "extra", "additional", "all",
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_PIECE = re.compile(
    r"(?P<word>°\s?[cfCF](?![a-zA-Z])|[A-Za-zμÅΩ]+|[\x05¢€£¥₹°])\.?(?:\s*\^\s*\{?(?P<power>-?\d)\}?|(?P<digit>\d)(?!\d))?"
    r"|(?P<slash>/)|(?P<dot>[\s.*()-]+)"
)
_QUOTIENT = re.compile(r"\\frac\s*\{([^{}\d]{1,40})\}\s*\{([^{}]{1,40})\}")
_AMERICAN = re.compile(r"\bU\.?S\.?\s+(?=dollar)", re.IGNORECASE)
_DEGREES = re.compile(r"(?:°|\bdegrees?)\s*(?:([cf])\b|(c)elsius\b|(f)ahrenheit\b)", re.IGNORECASE)
_SIGN = {"^\\circ": "°", "\\mu": "μ", "\\Omega": "Ω", "\\AA": "Å"}
_SIGNS = re.compile(r"(\^\\circ|\\(?:mu|Omega|AA))(?![a-zA-Z])\s?")
_TIMES = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])")
MAX_UNIT = 40
_PER = re.compile(r"\s*\b(?:per|an?|each|every)\b\s*")


class Measured(NamedTuple):
    """The text after a number: its unit, then words that do not change its value."""

    unit: Unit
    remark: str
    bare_letter: bool = False
    """The unit is one letter that touches the number, and may be meant as a variable."""


@lru_cache(4096)
def unit(rest: str) -> Unit | None:
    """The unit after a number. None if the text is mathematics or another number.

    Args:
        rest: normalised; empty, or with the space that was in front.
    """
    found = measured(rest)
    return found.unit if found is not None and harmless_behind(found.remark) else None


@lru_cache(4096)
def measured(rest: str) -> Measured | None:
    """The longest unit at the start of `rest`. None if a letter or a sign there belongs to a formula."""
    if not rest.strip():
        return Measured(NO_UNIT, "")
    marked = rest.lstrip().startswith(TEXT)
    tight = not marked and not rest.startswith((" ", "^\\circ", "°"))
    if "\\" in rest:
        rest = _TIMES.sub("*", _SIGNS.sub(lambda match: _SIGN[match[1]], rest))
        rest = _QUOTIENT.sub(r"\1/\2", rest)
    text = _AMERICAN.sub("", unmark(rest))
    text = _DEGREES.sub(lambda match: f"°{(match[1] or match[2] or match[3]).lower()}", text).strip()
    factors, end = _factors(text)
    if not factors:
        remark = text
        nouns = tuple((f"counted {word}", 1) for word in set(map(_singular, words(text))) - _FILLERS)
        variable = tight and not text.startswith((",", ".", ";", ":"))
        return None if variable else Measured(Unit(Fraction(1), tuple(sorted(nouns))), remark)
    first, remark = text[:end].strip(), text[end:]
    lone = tight and len(factors) == 1 and len(factors[0][0]) == 1 and factors[0][0].isascii() and first.isascii()
    if lone and factors[0][0] not in _TIGHT and factors[0][0] != "\x05":
        return None
    return Measured(_product(factors), remark, lone and factors[0][0].isalpha())


def with_unit(formula: str, behind: str) -> str:
    """A formula with the known unit that stands behind it in the text: `$a = 4.9$ m/s`."""
    found = measured(f" {behind[:MAX_UNIT].lstrip()}") if behind[:1] in " \\" else None
    if found is None or not is_known(found.unit):
        return formula
    text = behind[:MAX_UNIT].strip()
    return rf"{formula}\text{{ {text[: len(text) - len(found.remark)].strip()}}}"


_BEHIND_FORMULA = re.compile(
    rf"(.*[\w}})])\s*(?:{TEXT}([^{END_TEXT}]*){END_TEXT}"
    rf"|(?<=[\d\s}})])((?:square |cubic )?(?:{'|'.join(MULTI_LETTER)})s?))"
    r"((?:\^\{?\d\}?)?)",
    re.DOTALL,
)


def apart(formula: str) -> tuple[str, Unit]:
    """A normalised formula without the known unit at its end, and that unit."""
    found = _BEHIND_FORMULA.fullmatch(formula)
    behind = measured(f" {found[2] or found[3]}{found[4]}") if found else None
    if found is None or behind is None or behind.remark or not is_known(behind.unit):
        return formula, NO_UNIT
    return found[1], behind.unit


def conversion(label: Unit, answer: Unit) -> Fraction | None:
    """The factor from the answer's unit to the label's; None when they do not convert.

    Words that are no known units contradict each other only when they have no word in common.
    """
    if not label.dimensions or not answer.dimensions:
        return ONE
    if label == answer:
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
    return bool({name for name, _ in one.dimensions} & _BASE)


def named(word: str) -> Unit | None:
    """A symbol as written, or a name in any case and number."""
    if found := _SYMBOLS.get(word):
        return found
    lower = word.lower()
    return _NAMES.get(lower) or _NAMES.get(_singular(lower)) or _SYMBOLS.get(lower)


def _factors(text: str) -> tuple[list[tuple[str, int]], int]:
    """The known units at the start with their powers, and where they end."""
    factors: list[tuple[str, int]] = []
    position, end, sign, coming, power = 0, 0, 1, 1, 1
    while position < len(text):
        if (per := _PER.match(text, position)) and factors:
            position, sign = per.end(), -1
        piece = _PIECE.match(text, position)
        if piece is None:
            break
        position = piece.end()
        if piece["slash"]:
            sign = -1
        if not piece["word"]:
            continue
        word = piece["word"].replace(" ", "")
        if word in ("squared", "cubed") and factors:
            factors[-1] = (factors[-1][0], factors[-1][1] * _POWERS[word])
            end = position
        elif word.lower() in _POWERS and (word not in ("squared", "cubed")):
            coming = _POWERS[word.lower()]
        elif named(word) is None or (word == "in" and _is_preposition(text, position)):
            break
        else:
            power = int(piece["power"] or piece["digit"] or coming)
            factors.append((word, sign * power))
            sign, coming, end = 1, 1, position
    return factors, end


def _is_preposition(text: str, position: int) -> bool:
    """Whether `in` goes on with a word or a number."""
    return bool(re.match(r"\s+\w", text[position:])) and not _PER.match(text, position)


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
