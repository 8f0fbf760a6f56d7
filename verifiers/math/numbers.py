"""Reads plain numbers exactly and compares them in microseconds, without floating point."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.math.notation import DOLLAR, END_TEXT, TEXT, unmark
from olmorl.verifiers.math.units import FOOT, INCH, NO_UNIT, ONE, SCALES, Unit, conversion, is_known, measured, unit
from olmorl.verifiers.math.words.spelled import AND_PART, part_size, spelled
from olmorl.verifiers.math.words.wording import doubtful, harmless_behind

NOISE = Fraction(1, 10**9)
"""Largest difference from a label of 0, where no relative tolerance exists."""
MAX_EXPONENT = 2000

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)?(?:\.\d*(?: \d{3})*)?"
REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:(?:\\(?:overline|bar|dot)\s*\{|\()(\d+)[})]|\\(?:overline|bar|dot)\s*(\d)(?!\d))"
)
_TIMES = r"\s*(?:\\times|\\cdot|\*|x)\s*"
_SCIENTIFIC = re.compile(
    rf"({_DECIMAL})(?:[eE]\s?([+-]?\d{{1,5}})|{_TIMES}10\s*\^\s*(?:\{{\s*([+-]?\d{{1,5}})\s*\}}|([+-]?\d{{1,5}})))(?!\w)"
)
_POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*([+-]?\d{1,5})\s*\}|(\d{1,5}))")
_IN = r"(?<=\d )in(?= \d+(?:$| chances?\b))"
"""As in `1 in 4` and `a 1 in 4 chance`."""
_FRACTION = re.compile(
    rf"(\d+)?\s*\\frac\s*(?:\{{\s*(-?)\s*({_DECIMAL})\s*\}}|(\d))\s*(?:\{{\s*(-?)\s*({_DECIMAL})\s*\}}|(\d))|"
    rf"(?:(\d+) (?!(?:out|in)\b))?({_DECIMAL})\s*(?:/|\\div|\bout of\b|{_IN})\s*({_DECIMAL})"
)
_PLAIN = re.compile(_DECIMAL)
_DIGITS = re.compile(r"\d+(?=$|\s?%|\s+(?!out of\b|in \d)[a-wyz])")
"""An integer that ends here."""
_BEHIND_DIGITS = re.compile(r"\D.*")
_NAME = re.compile(
    rf"(?:([a-zA-Z](?:_\{{?\w+\}}?)?)|{TEXT}[^{END_TEXT}]*{END_TEXT}|[a-zA-Z]{{3,}}(?: [a-zA-Z]+)*)\s*(?:="
    rf"|\\approx(?![a-zA-Z]))\s*"
)
"""The name in front of `=`. A letter can contradict another letter; words contradict nothing."""
_PERCENT = re.compile(r"\s*(?:%|\bper\s?cent(?:age)?\b|\bpercentage\b|\bpct\b)(?:\s*points?\b)?", re.IGNORECASE)
_OF_ONE = re.compile(r"\s+of\s+(?:an?|one)\s+", re.IGNORECASE)
_CURRENCY = re.compile(
    rf"([+-]?)\s*(?:(?:US|AU|CA|NZ|R)?([{DOLLAR}€£¥₹])|(USD|EUR|GBP|JPY|INR|Rs\.?)(?![a-zA-Z]))\s*([+-]?)"
)
_SCALE = re.compile(rf"\s*({'|'.join(SCALES)})s?\b", re.IGNORECASE)
_LETTER_SCALE = re.compile(r"([kKMB])(?![a-zA-Z])")
_LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
_MINUS = re.compile(r"(?:negative|minus)\s+(?=[\d.\\a-z])", re.IGNORECASE)
_JOINED = re.compile(rf"\s*,?\s*(?:(?:and|&)\s)?\s*(?=[\d{DOLLAR}€£])")
"""Between the parts of a quantity in several units."""
_FEET = re.compile(r"(\d{1,6})\s*'\s*(\d{1,2}(?:\.\d{1,6})?)\s*(?:\"|'')")
_LENGTH, _TIME, _HOURS, _MINUTES = (("length", 1),), (("time", 1),), Fraction(3600), Fraction(60)


class Policy(NamedTuple):
    """The rules of agreement that a recipe may choose, as in `config.Verifiers`."""

    strict_percent: bool = False
    units: str = "lenient"
    exact_case: bool = False
    tolerance: float = 1e-6
    ordered: bool = False
    """Items of a list without brackets must come in the label's order."""
    decimal_comma: bool = True
    """A comma in the label may be a decimal comma. In a question in English it parts two numbers."""


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
    bare_letter: bool = False
    """Whether the unit is one letter that touches the number and may be a variable: `5m`."""


def quantity(text: str) -> Quantity | None:
    """Read normalised text as one number with its unit and harmless words. None for anything else."""
    found = leading(text)
    return found[0] if found is not None and harmless_behind(found[1]) else None


def leading(text: str) -> tuple[Quantity, str] | None:
    """The quantity that normalised text starts with, and the words behind it."""
    name = ""
    if assigned := _NAME.match(text):
        if doubtful(assigned[0]):
            return None
        name, text = assigned[1] or "", text[assigned.end() :].removeprefix("\\approx").strip()
    if feet := _FEET.match(text):
        value = int(feet[1]) + Fraction(feet[2]) / 12
        return Quantity(value, None, unit=FOOT, name=name, finest=INCH), text[feet.end() :]
    first = _part(text)
    if first is None:
        return None
    total, rest = first
    while total.unit.dimensions and (joined := _JOINED.match(rest)):
        following = _part(rest[joined.end() :])
        part = following and _finer(total, following[0], touching=not joined[0])
        if following is None or part is None:
            break
        value = total.value + part.value * part.unit.factor / total.unit.factor
        total, rest = total._replace(value=value, finest=part.unit, step=None, bare_letter=False), following[1]
    return total._replace(name=name), rest


def _part(text: str) -> tuple[Quantity, str] | None:
    """A number with its sign, currency, scale, and percent sign or unit; and the rest."""
    priced = _CURRENCY.match(text)
    if priced:
        text = (priced[1] or priced[4]) + text[priced.end() :]
    number, rest = _leading_number(text.strip())
    if number is None:
        return None
    value, step = number
    value, rest, letter = _scaled(value, rest)
    if percent := _PERCENT.match(unmark(rest)):
        rest = unmark(rest)[percent.end() :]
        whole = _OF_ONE.match(rest)
        of = measured(f" {rest[whole.end() :]}") if whole else None
        if of is None or not is_known(of.unit):
            return Quantity(value, step, percent=True), rest
        return Quantity(value / 100, step and step / 100, unit=of.unit), of.remark
    if (
        (part := _OF_ONE.match(unmark(rest)))
        and (of := measured(f" {unmark(rest)[part.end() :]}"))
        and is_known(of.unit)
    ):
        return Quantity(value, step, unit=of.unit), of.remark
    found = measured(rest)
    if found is None:
        return None
    counted = found.unit
    if priced:
        money = unit(f" {(priced[2] or priced[3]).strip('.')}") or NO_UNIT
        counted = counted if counted.dimensions and counted.dimensions[0] in money.dimensions else money
    bare_letter = bool(found.bare_letter or letter) and not priced
    return _with_part(Quantity(value, step, unit=counted, bare_letter=bare_letter), found.remark)


def _scaled(value: Fraction, rest: str) -> tuple[Fraction, str, bool]:
    """The value with a half or a scale behind it, the rest, and whether the scale is a letter: `2 thousand`, `5k`."""
    if part := AND_PART.match(unmark(rest)):
        value, rest = value + part_size(part), unmark(rest)[part.end() :]
    if scaled := _SCALE.match(unmark(rest)):
        return value * SCALES[scaled[1].lower()], unmark(rest)[scaled.end() :], False
    letter = _LETTER_SCALE.match(rest)
    return (value * _LETTER_SCALES[letter[1]], rest[letter.end() :], True) if letter else (value, rest, False)


def _with_part(whole: Quantity, rest: str) -> tuple[Quantity, str]:
    """A quantity with the half or quarter behind its unit: `an hour and a half`."""
    part = AND_PART.match(rest) if is_known(whole.unit) else None
    if part is None:
        return whole, rest
    return whole._replace(value=whole.value + part_size(part)), rest[part.end() :]


def _finer(whole: Quantity, part: Quantity, touching: bool) -> Quantity | None:
    """The next part of a quantity in several units. None if it is a separate number."""
    coarse = whole.finest if whole.finest.dimensions else whole.unit
    hours = coarse.dimensions == _TIME and coarse.factor == _HOURS
    if hours and ((touching and part.unit == NO_UNIT) or (part.bare_letter and part.unit.dimensions == _LENGTH)):
        part = part._replace(unit=Unit(_MINUTES, _TIME))
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
    if policy.units == "ignore":
        return ONE
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
    if minus := _MINUS.match(text):
        text = "-" + text[minus.end() :]
    sign = -1 if text.startswith("-") else 1
    body = text[1:].lstrip() if text[:1] in ("+", "-") else text
    if body[:1].isalpha() and (words := spelled(unmark(body))):
        return (sign * words[0], None), unmark(body)[words[1] :]
    if digits := _DIGITS.match(body):
        return (sign * Fraction(digits[0]), None), body[digits.end() :]
    for pattern, read in _FORMS:
        if (match := pattern.match(body)) and match.end() and (value := read(match)) is not None:
            return (sign * value, _step(match, value)), body[match.end() :]
    return None, text


def _step(match: re.Match[str], value: Fraction) -> Fraction | None:
    """The value of one unit in the last written decimal."""
    if "." not in match[0] or match.re is REPEATING:
        return None
    mantissa = decimal(match[1]) if match.re is _SCIENTIFIC else None
    digits = _BEHIND_DIGITS.sub("", match[0].partition(".")[2])
    size = Fraction(1, 10 ** len(digits))
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


def _power_of_ten(mantissa: Fraction | None, exponent: str | None) -> Fraction | None:
    if mantissa is None or exponent is None or abs(int(exponent)) > MAX_EXPONENT:
        return None
    return mantissa * Fraction(10) ** int(exponent)


def _fraction(match: re.Match[str]) -> Fraction | None:
    whole, minus, top, top_digit, under_minus, bottom, bottom_digit, whole_text, numerator, denominator = match.groups()
    over = decimal(top or top_digit or numerator or "")
    under = decimal(bottom or bottom_digit or denominator or "")
    if over is None or not under or (" in " in match[0] and over >= under):
        return None
    sign = -1 if bool(minus) != bool(under_minus) else 1
    return int(whole or whole_text or 0) + sign * over / under


_FORMS = (
    (_FRACTION, _fraction),
    (REPEATING, repeating),
    (_SCIENTIFIC, lambda m: _power_of_ten(decimal(m[1]), m[2] or m[3] or m[4])),
    (_POWER_OF_TEN, lambda m: _power_of_ten(Fraction(1), m[1] or m[2])),
    (_PLAIN, lambda m: decimal(m[0])),
)
