"""Reads plain numbers exactly and compares them: no floating point, no SymPy, microseconds."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from olmorl.verifiers.notation import END_TEXT, TEXT, unmark

TOLERANCE = Fraction(1, 10**6)
NOISE = Fraction(1, 10**9)
"""How near to a label of 0 an answer must lie, for which no relative tolerance exists."""
MAX_EXPONENT = 2000

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)?(?:\.\d*(?: \d{3})*)?"
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{?|\()(\d+)[})]?")
_SCIENTIFIC = re.compile(
    rf"({_DECIMAL})\s*(?:[eE]\s?([+-]?\d{{1,5}})|(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{{\s*([+-]?\d{{1,5}})\s*\}}|(\d)))"
)
_POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*([+-]?\d{1,5})\s*\}|(\d))")
_FRACTION = re.compile(
    rf"(\d+)?\s*\\frac\s*(?:\{{\s*(-?)\s*({_DECIMAL})\s*\}}|(\d))\s*(?:\{{\s*({_DECIMAL})\s*\}}|(\d))|"
    rf"(?:(\d+) )?({_DECIMAL})\s*/\s*({_DECIMAL})"
)
_PLAIN = re.compile(_DECIMAL)
_NAME = re.compile(r"([a-zA-Z](?:_\{?\w+\}?)?)\s*=\s*")
_PERCENT = re.compile(r"\s*(?:%|\bper\s?cent\b|\bpercentage\b|\bpct\b)\s*$", re.IGNORECASE)
_UNIT_POWER = re.compile(r"\^\{?(\d)\}?")

_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "s": "second sec", "min": "minute", "h": "hour hr", "day": "day", "week": "week",
    "year": "year yr", "l": "liter litre", "ml": "milliliter millilitre", "$": "dollar usd", "cent": "cent",
    "deg": "degree ^\\circ °", "rad": "radian", "mph": "mph", "": "unit",
}  # fmt: skip
_CANONICAL = {alias: unit for unit, names in _UNITS.items() for alias in (unit, *names.split())}


class Quantity(NamedTuple):
    """A number as written: `x = 50\\%` is 50, named x, a percentage."""

    value: Fraction
    exact: bool
    """Written without a decimal point."""
    percent: bool = False
    unit: str = ""
    name: str = ""


def quantity(text: str) -> Quantity | None:
    """Read normalised text as one number, with what may stand around it; None when it is anything else."""
    name = ""
    if assigned := _NAME.match(text):
        name, text = assigned[1], text[assigned.end() :].removeprefix("\\approx").strip()
    number, rest = _leading_number(text.strip())
    if number is None:
        return None
    value, exact = number
    if _PERCENT.fullmatch(unmark(rest)):
        return Quantity(value, exact, percent=True, name=name)
    unit = _unit(rest)
    return None if unit is None else Quantity(value, exact, unit=unit, name=name)


def equal(label: Quantity, answer: Quantity, strict_percent: bool) -> bool:
    """Whether two numbers agree, with their names and units where both have them."""
    if label.name and answer.name and label.name != answer.name:
        return False
    if label.unit and answer.unit and label.unit != answer.unit:
        return False
    if label.percent == answer.percent:
        return close(label, answer)
    shrunk = [q._replace(value=q.value / 100, exact=False) if q.percent else q for q in (label, answer)]
    return close(*shrunk) or (not strict_percent and close(label, answer))


def close(label: Quantity, answer: Quantity) -> bool:
    """Exact numbers must be equal. A decimal must be near relatively, and absolutely too if the label is an integer."""
    difference = abs(label.value - answer.value)
    if not difference:
        return True
    if label.exact and answer.exact:
        return False
    if not label.value:
        return difference <= NOISE
    if label.value.denominator == 1 and difference > TOLERANCE:
        return False
    return difference <= TOLERANCE * max(abs(label.value), abs(answer.value))


def _leading_number(text: str) -> tuple[tuple[Fraction, bool] | None, str]:
    """The number that `text` starts with, and the rest."""
    while len(text) > 2 and text[0] in "({" and text[-1] in ")}" and text[1:-1].isascii() and "," not in text:
        inner = text[1:-1].strip()
        if any(bracket in inner for bracket in "(){}") and "\\frac" not in inner:
            break
        text = inner
    sign = -1 if text.startswith("-") else 1
    body = text[1:].lstrip() if text[:1] in ("+", "-") else text
    for pattern, read in _FORMS:
        if (match := pattern.match(body)) and match.end() and (value := read(match)) is not None:
            exact = "." not in match[0] or pattern is _REPEATING
            return (sign * value, exact), body[match.end() :]
    return None, text


def _decimal(digits: str) -> Fraction | None:
    digits = digits.replace(",", "").replace(" ", "")
    return Fraction(digits) if digits.strip(".") else None


def _repeating(match: re.Match[str]) -> Fraction:
    whole, fixed, cycle = match.groups()
    scale = 10 ** len(fixed)
    return Fraction(int(whole + fixed or "0"), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))


def _scaled(mantissa: Fraction | None, exponent: str | None) -> Fraction | None:
    if mantissa is None or exponent is None or abs(int(exponent)) > MAX_EXPONENT:
        return None
    return mantissa * Fraction(10) ** int(exponent)


def _fraction(match: re.Match[str]) -> Fraction | None:
    whole, minus, top, top_digit, bottom, bottom_digit, whole_text, numerator, denominator = match.groups()
    over = _decimal(top or top_digit or numerator or "")
    under = _decimal(bottom or bottom_digit or denominator or "")
    if over is None or not under:
        return None
    return int(whole or whole_text or 0) + (-over if minus else over) / under


_FORMS = (
    (_FRACTION, _fraction),
    (_REPEATING, _repeating),
    (_SCIENTIFIC, lambda m: _scaled(_decimal(m[1]), m[2] or m[3] or m[4])),
    (_POWER_OF_TEN, lambda m: _scaled(Fraction(1), m[1] or m[2])),
    (_PLAIN, lambda m: _decimal(m[0])),
)


def _unit(rest: str) -> str | None:
    """The canonical unit after a number; None when what stands there is not a unit but mathematics."""
    if not rest.strip():
        return ""
    marked = TEXT in rest
    words = _UNIT_POWER.sub(r"\1", unmark(rest).replace(END_TEXT, "")).lower().replace("^\\circ", " degree ").split()
    if not words or not all(re.fullmatch(r"[a-z./]+\d?", word) for word in words):
        return None
    known = [_canonical(word) for word in words]
    if not marked and not rest.startswith((" ", "^\\circ")):
        return None
    if not marked and any(name is None and len(word) < 3 for name, word in zip(known, words, strict=True)):
        return None
    if words[0] in ("square", "cubic", "sq", "cu"):
        power = "2" if words[0].startswith("sq") else "3"
        return (
            known[1] + power
            if len(words) == 2 and known[1]
            else ""
            if len(words) == 2 and known[1] == ""
            else " ".join(words)
        )
    return " ".join(name if name is not None else word.rstrip("s") for name, word in zip(known, words, strict=True))


def _canonical(word: str) -> str | None:
    power = word[-1] if word[-1:].isdigit() else ""
    stem = word.removesuffix(power).rstrip(".")
    for candidate in (stem, stem.removesuffix("s"), stem.removesuffix("es")):
        if candidate in _CANONICAL:
            unit = _CANONICAL[candidate]
            return unit + power if unit else ""
    return None
