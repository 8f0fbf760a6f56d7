"""Reads plain numbers exactly and compares them in microseconds, without floating point."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.math.notation import DOLLAR, END_TEXT, TEXT, unmark
from olmorl.verifiers.math.units import NO_LETTERS, NO_UNIT, ONE, SCALES, Unit, conversion, is_known, measured, named
from olmorl.verifiers.math.words import changed_behind, doubtful, has_number, spelled

NOISE = Fraction(1, 10**9)
"""Largest difference from a label of 0, where no relative tolerance exists."""
MAX_EXPONENT = 2000

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)?(?:\.\d*(?: \d{3})*)?"
REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:(?:\\(?:overline|bar|dot)\s*\{|\()(\d+)[})]|\\(?:overline|bar|dot)\s*(\d)(?!\d))"
)
_SCIENTIFIC = re.compile(
    rf"(?:({_DECIMAL})(?:[eE]\s?([+-]?\d{{1,5}})|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*([+-]?\d{{1,5}})\s*\}}?)"
    r"|10\s*\^\s*\{?\s*([+-]?\d{1,5})\s*\}?)(?!\w)"
)
_FRACTION = re.compile(
    rf"(\d+)?\s*\\frac\s*(?:\{{\s*(-?)\s*({_DECIMAL})\s*\}}|(\d))\s*(?:\{{\s*(-?)\s*({_DECIMAL})\s*\}}|(\d))|"
    rf"(?:(\d+) (?!out of\b))?({_DECIMAL})\s*(?:/|\\div|\bout of\b)\s*({_DECIMAL})"
)
_PLAIN = re.compile(_DECIMAL)
_NAME = re.compile(
    rf"(?:([a-zA-Z](?:_\{{?\w+\}}?)?)|{TEXT}?[a-zA-Z][a-zA-Z' ]{{2,}}[{TEXT}\x03]?)\s*(?:=|\\approx(?![a-z]))\s*"
)
"""The name in front of `=`. A letter can contradict another letter; words contradict nothing."""
_CURRENCY = re.compile(
    rf"([+-]?)\s*(?:(?:US|AU|CA|NZ)?([{DOLLAR}€£¥₹])|(USD|EUR|GBP|JPY|INR|Rs\.?)(?![a-zA-Z]))\s*([+-]?)"
)
_PERCENT = ("percent", "percentage", "pct", "percents")
_JOINED = re.compile(rf"\s*,?\s*(?:(?:and|&)\s)?\s*(?=[\d{DOLLAR}€£])")
"""Between the parts of a quantity in several units."""
_ASIDE = re.compile(r"\s+\((?P<said>[^()\\]*(?:[a-z]{3}|=)[^()\\]*)\)|,?\s(?:because|since|as|which|so)\s.*", re.DOTALL)
"""Words behind a number that do not count, unless they deny it."""
_SHORT = "of|in|a|an|to|is|it|at|by|on|we|he|us|per|no|so|do|as|up|my|be"
_WORDS = re.compile(
    rf"(?:[\s.,;:\"&°-]++|(?<![a-zA-Z\d)])(?:[^\W\d_]{{3,}}+(?:'s?)?|{_SHORT})(?![^\W_]))*+"
    rf"|\s*+{TEXT}[^{TEXT}{END_TEXT}\d]*+{END_TEXT}[\s.,a-z]*+"
)
"""Words, and no letters that may be variables."""


class Policy(NamedTuple):
    """The rules of agreement that a recipe may choose, as in `config.Verifiers`."""

    strict_percent: bool = False
    units: str = "lenient"
    exact_case: bool = False
    tolerance: float = 1e-6
    ordered: bool = False
    """Items of a list without brackets must come in the label's order."""


class Quantity(NamedTuple):
    """A number as written: `x = 50\\%` is 50, named x, a percentage."""

    value: Fraction
    step: Fraction | None
    """The value of one unit in its last written digit. None for a number without a decimal point, which is exact."""
    percent: bool = False
    unit: Unit = NO_UNIT
    name: str = ""
    finest: Unit = NO_UNIT
    """The last of several units: minutes in `3 hours 30 minutes`, whose value is in hours."""
    unscaled: Fraction | None = None
    """The number in front of a scale: 5 of `5 dozen`."""


def quantity(text: str, letters: frozenset[str] = NO_LETTERS) -> Quantity | None:
    """Read normalised text as one number with its unit and harmless words. None for anything else.

    Args:
        letters: the single letters that are units.
    """
    name = ""
    if assigned := _NAME.match(text):
        if doubtful(assigned[0]):
            return None
        name, text = assigned[1] or "", text[assigned.end() :].removeprefix("\\approx").strip()
    first = _part(text, letters)
    if first is None:
        return None
    total, rest = first
    while total.unit.dimensions and (joined := _JOINED.match(rest)):
        following = _part(rest[joined.end() :], letters)
        part = following and _finer(total, following[0])
        if following is None or part is None:
            break
        value = total.value + part.value * part.unit.factor / total.unit.factor
        total, rest = total._replace(value=value, finest=part.unit, step=None), following[1]
    return total._replace(name=name) if _harmless(rest) else None


def _harmless(rest: str) -> bool:
    """Whether words behind a number leave it as it is: `of apples`, `fourth graders`, `(because 2^3 = 8)`."""
    rest = f" {rest}"
    asides = " ".join(aside["said"] or "" for aside in _ASIDE.finditer(rest))
    rest = _ASIDE.sub("", rest)
    return bool(_WORDS.fullmatch(rest)) and not changed_behind(rest) and not doubtful(asides) and not has_number(rest)


def _part(text: str, letters: frozenset[str]) -> tuple[Quantity, str] | None:
    """A number with its sign, currency, scale, and percent sign or unit; and the rest."""
    priced = _CURRENCY.match(text)
    if priced:
        text = (priced[1] or priced[4]) + text[priced.end() :]
    number, rest = _leading_number(text.strip())
    if number is None:
        return None
    value, step = number
    if rest.startswith(("(", "[", "{")):
        return None
    rest = rest.replace("per cent", "percent")
    first = unmark(rest).split(maxsplit=1)[:1]
    word = first[0].strip(".,").lower() if first else ""
    size = SCALES.get(word) or SCALES.get(word.removesuffix("s")) or (1000 if word == "k" and priced else None)
    unscaled = value if size else None
    if size:
        value, step, rest = value * size, None, unmark(rest).lstrip()[len(first[0]) :]
    if word.startswith("%") or word in _PERCENT:
        return Quantity(value, step, percent=True), unmark(rest).lstrip()[1 if word[0] == "%" else len(first[0]) :]
    found = measured(rest, letters)
    if found is None:
        return None
    counted = found.unit
    if priced:
        money = named((priced[2] or priced[3]).strip(".")) or NO_UNIT
        counted = counted if counted.dimensions and counted.dimensions[0] in money.dimensions else money
    return Quantity(value, step, unit=counted, unscaled=unscaled), found.remark


def _finer(whole: Quantity, part: Quantity) -> Quantity | None:
    """The next part of a quantity in several units. None if it is a separate number."""
    coarse = whole.finest if whole.finest.dimensions else whole.unit
    alike = part.unit.dimensions == coarse.dimensions and is_known(coarse)
    return part if alike and part.unit.factor < coarse.factor and part.value >= 0 and not part.percent else None


def equal(label: Quantity, answer: Quantity, policy: Policy) -> bool:
    """Whether two numbers agree, with their names and units as far as the policy asks.

    A percentage is the number that it is, 25% = 1/4. Unless the policy is strict, it is also the number in front of
    the sign, when the label is a percentage too or may be meant as one: it has no sign, and is 1 or more.
    A percentage is no length, angle or price.
    A quantity in several units is their sum, in the first unit or in the last.
    """
    if label.name and answer.name and label.name != answer.name:
        return False
    ratio = unit_ratio(label.unit, answer.unit, policy)
    if ratio is None:
        return False
    if not (label.unit.dimensions and answer.unit.dimensions):
        label, answer = _in_finest(label, answer.value), _in_finest(answer, label.value)
    if ratio != 1:
        answer = answer._replace(value=answer.value * ratio, step=answer.step and answer.step * ratio)
    if label.percent == answer.percent:
        return close(label, answer, policy)
    if is_known(label.unit) or is_known(answer.unit):
        return False
    if close(_shrunk(label), _shrunk(answer), policy):
        return True
    plausible = label.percent or abs(label.value) >= 1
    return plausible and not policy.strict_percent and close(label, answer, policy)


def _in_finest(number: Quantity, other: Fraction) -> Quantity:
    """The number in its last unit, if that makes it equal to the other number."""
    if not number.finest.dimensions:
        return number
    value = number.value * number.unit.factor / number.finest.factor
    return number._replace(value=value) if value == other else number


def _shrunk(number: Quantity) -> Quantity:
    """A percentage as the number it is."""
    if not number.percent:
        return number
    return number._replace(value=number.value / 100, step=number.step and number.step / 100)


def unit_ratio(label: Unit, answer: Unit, policy: Policy) -> Fraction | None:
    """The factor that makes the answer's number comparable. None if the policy refuses its unit."""
    if policy.units == "strict" and label.dimensions != answer.dimensions and label.dimensions:
        return None
    return conversion(label, answer)


def close(label: Quantity, answer: Quantity, policy: Policy) -> bool:
    """Exact numbers must be equal. A decimal must be near: within the tolerance times the larger of the two.

    For large numbers that is not enough: the difference must also be at most the tolerance itself, or the rounding of
    the decimal's last digit. An integer is never rounded, so a label of 1 and 1.0000001 agree, and 1000000 and
    1000000.4 differ.
    """
    if label.value == answer.value:
        return True
    if label.step is None and answer.step is None:
        return False
    difference = abs(label.value - answer.value)
    if not label.value:
        return difference <= NOISE
    tolerance = _exactly(policy.tolerance)
    if difference > tolerance * max(abs(label.value), abs(answer.value)):
        return False
    if difference <= tolerance:
        return True
    if label.value.denominator == 1:
        return False
    if label.step is not None:
        return 2 * difference <= max(label.step, answer.step or 0)
    return difference <= (answer.step or 0)


@lru_cache(64)
def _exactly(tolerance: float) -> Fraction:
    """The float as it is written: 1e-6 is exactly a millionth."""
    return Fraction(str(tolerance))


_Number = tuple[Fraction, Fraction | None]


def _leading_number(text: str) -> tuple[_Number | None, str]:
    """The number that `text` starts with, and the rest."""
    while len(text) > 2 and text[0] in "({" and text[-1] in ")}" and text[1:-1].isascii() and "," not in text:
        inner = text[1:-1].strip()
        if any(bracket in inner for bracket in "(){}") and "\\frac" not in inner:
            break
        text = inner
    for minus in ("negative ", "minus "):
        text = "-" + unmark(text)[len(minus) :] if unmark(text).lower().startswith(minus) else text
    sign = -1 if text.startswith("-") else 1
    body = text[1:].lstrip() if text[:1] in ("+", "-") else text
    if unmark(body)[:1].isalpha() and (words := spelled(unmark(body))):
        return (sign * words[0], None), unmark(body)[words[1] :]
    for pattern, read in _FORMS:
        if (match := pattern.match(body)) and match.end() and (value := read(match)) is not None:
            return (sign * value, _step(match, value)), body[match.end() :]
    return None, text


def _step(match: re.Match[str], value: Fraction) -> Fraction | None:
    """The value of one unit in the last written decimal."""
    if "." not in match[0] or match.re is REPEATING:
        return None
    mantissa = decimal(match[1]) if match.re is _SCIENTIFIC and match[1] else None
    places = len(match[0].partition(".")[2]) if mantissa is None else len(match[1].partition(".")[2])
    size = Fraction(1, 10**places) if match.re is not _FRACTION else NOISE
    return abs(value / mantissa) * size if mantissa else size


def decimal(digits: str) -> Fraction | None:
    """The value of digits with separators. None without a digit."""
    digits = digits.replace(",", "").replace(" ", "")
    return Fraction(digits) if digits.strip(".") else None


def repeating(match: re.Match[str]) -> Fraction:
    """The value of a match of REPEATING."""
    whole, fixed, cycle = match[1], match[2], match[3] or match[4]
    scale = 10 ** len(fixed)
    return Fraction(int(whole + fixed or "0"), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))


def _scientific(match: re.Match[str]) -> Fraction | None:
    mantissa = decimal(match[1]) if match[1] is not None else ONE
    exponent = int(match[2] or match[3] or match[4])
    return None if mantissa is None or abs(exponent) > MAX_EXPONENT else mantissa * Fraction(10) ** exponent


def _fraction(match: re.Match[str]) -> Fraction | None:
    whole, minus, top, top_digit, under_minus, bottom, bottom_digit, whole_text, numerator, denominator = match.groups()
    over = decimal(top or top_digit or numerator or "")
    under = decimal(bottom or bottom_digit or denominator or "")
    if over is None or not under:
        return None
    sign = -1 if bool(minus) != bool(under_minus) else 1
    return int(whole or whole_text or 0) + sign * over / under


_FORMS = (
    (_FRACTION, _fraction),
    (REPEATING, repeating),
    (_SCIENTIFIC, _scientific),
    (_PLAIN, lambda match: decimal(match[0])),
)
