"""Families of fractions, percents and repeating decimals."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.numerals import decimal_text, fraction_text
from tests.verifiers.fuzz.pairs import Families, Made

ELLIPSES = ("...", r"\ldots", r"\dots", "…")


def repeating(rng: Random, truth: bool) -> Made | None:
    fixed = "".join(rng.choices("0123456789", k=rng.randint(0, 2)))
    cycle = "".join(rng.choices("0123456789", k=rng.randint(1, 3)))
    whole = rng.choice((0, 0, 1, 7, 12))
    number = _repeats(whole, fixed, cycle)
    if len(set(cycle)) < len(cycle) or cycle in "09":
        return None
    label = rng.choice((fraction_text(rng, number), _overlined(rng, whole, fixed, cycle)))
    if truth:
        name, answer = rng.choice(
            (
                ("overlined", _overlined(rng, whole, fixed, cycle)),
                (
                    "ellipsis",
                    f"{whole}.{fixed}{cycle * (6 // len(cycle))}{rng.choice(ELLIPSES)}",
                ),
                ("two cycles", rf"{whole}.{fixed}\overline{{{cycle * 2}}}"),
                ("fraction", fraction_text(rng, number)),
            )
        )
        return Made(name, label, answer)
    other = str((int(cycle) + rng.randint(1, 10 ** len(cycle) - 2)) % 10 ** len(cycle)).zfill(len(cycle))
    name, answer = rng.choice(
        (
            ("other cycle", _overlined(rng, whole, fixed, other)),
            ("cut off", f"{whole}.{fixed}{cycle}"),
            ("other fraction", fraction_text(rng, Fraction(number.numerator + 1, number.denominator))),
            ("shifted", _overlined(rng, whole, fixed + "0", cycle)),
            ("sign", f"-{_overlined(rng, whole, fixed, cycle)}"),
        )
    )
    if name == "cut off" and number - Fraction(answer) < number / 10**5:
        return None
    if name == "other cycle" and _repeats(whole, fixed, other) == number:
        return None
    return Made(name, label, answer)


def _repeats(whole: int, fixed: str, cycle: str) -> Fraction:
    scale = 10 ** len(fixed)
    return whole + Fraction(int(fixed or 0), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))


def _overlined(rng: Random, whole: int, fixed: str, cycle: str) -> str:
    mark = rng.choice((r"\overline", r"\bar")) if len(cycle) > 1 else rng.choice((r"\overline", r"\bar", r"\dot"))
    return f"{whole}.{fixed}{mark}{{{cycle}}}"


def fractions(rng: Random, truth: bool) -> Made | None:
    number = Fraction(rng.randint(1, 10 ** rng.randint(1, 3)), rng.randint(2, 60)) * rng.choice((1, 1, -1))
    if number.denominator == 1:
        return None
    label = fraction_text(rng, number)
    mixed = abs(number) > 1
    if truth:
        ways = {
            "scaled": fraction_text(rng, number, rng.randint(2, 12)),
            "notation": fraction_text(rng, number),
            "named": f"{rng.choice('xPy')} = {fraction_text(rng, number)}",
        }
        if mixed:
            ways["mixed"] = _mixed(rng, number)
        name = rng.choice(sorted(ways))
        return Made(name, label, ways[name])
    changes = {
        "upside down": 1 / number,
        "sign": -number,
        "numerator": Fraction(number.numerator + rng.choice((1, 2)), number.denominator),
        "denominator": Fraction(number.numerator, number.denominator + rng.choice((1, 2))),
        "whole number": Fraction(number.numerator),
        "digits joined": Fraction(int(f"{abs(number.numerator)}{number.denominator}")),
    }
    if mixed:
        whole = abs(number) // 1
        changes["mixed as a product"] = whole * (abs(number) - whole)
    name = rng.choice(sorted(changes))
    return Made(name, label, fraction_text(rng, changes[name])) if changes[name] != number else None


def _mixed(rng: Random, number: Fraction) -> str:
    whole, rest = divmod(abs(number), 1)
    sign = "-" if number < 0 else ""
    command = rng.choice((r"\frac", r"\dfrac", r"\tfrac"))
    return rng.choice(
        (
            f"{sign}{whole}{command}{{{rest.numerator}}}{{{rest.denominator}}}",
            f"{sign}{whole} {command}{{{rest.numerator}}}{{{rest.denominator}}}",
            f"{sign}{whole} {rest.numerator}/{rest.denominator}",
        )
    )


def percents(rng: Random, truth: bool) -> Made | None:
    if rng.random() < 0.1:
        return _third_of_a_percent(rng, truth)
    number = Fraction(rng.randint(1, 999), rng.choice((1, 1, 2, 4, 10)))
    text = decimal_text(number)
    marks = (
        rf"{text}\%",
        f"{text}%",
        f"{text} percent",
        rf"{text} \text{{ percent}}",
        rf"{text}\,\%",
        f"{text} per cent",
    )
    label = rng.choice((rf"{text}\%", f"{text}%", decimal_text(number / 100), fraction_text(rng, number / 100)))
    if truth:
        name, answer = rng.choice(
            (
                ("mark", rng.choice(marks)),
                ("decimal", decimal_text(number / 100)),
                ("fraction", fraction_text(rng, number / 100)),
            )
        )
        return Made(name, label, answer)
    other = rng.choice((number + 1, number * 10, number / 10, number + 10))
    name, answer = rng.choice(
        (
            ("other percent", rf"{decimal_text(other)}\%"),
            ("other decimal", decimal_text(other / 100)),
            ("a fraction read as percent", rf"{decimal_text(number / 100)}\%"),
        )
    )
    if name == "a fraction read as percent":
        label = rng.choice((decimal_text(number / 100), fraction_text(rng, number / 100), rf"{text}\%"))
        return Made(name, label, answer) if number < 100 else None
    clash = other / 100 == number or other * 100 == number or (other in (number / 100, number))
    return None if clash else Made(name, label, answer)


def _third_of_a_percent(rng: Random, truth: bool) -> Made:
    r"""`33\frac{1}{3}\%` is a third."""
    whole, part = rng.randint(1, 99), rng.randint(1, 2)
    label = rf"{whole}\frac{{{part}}}{{3}}\%"
    value = Fraction(3 * whole + part, 300) if truth else Fraction(3 * whole + part, 30)
    answer = fraction_text(rng, value) if rng.random() < 0.5 else rf"{fraction_text(rng, 100 * value)}\%"
    return Made("mixed percent", label, answer)


FAMILIES: Families = {
    "repeating decimals": repeating,
    "fractions": fractions,
    "percents": percents,
}
