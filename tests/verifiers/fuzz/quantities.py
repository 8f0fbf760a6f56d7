"""Families of numbers with a unit: money, measures, compound measures, angles."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import NamedTuple

from tests.verifiers.fuzz.numerals import decimal_text, grouped
from tests.verifiers.fuzz.pairs import Families, Made


class Measure(NamedTuple):
    """A unit: what it counts, how many base units it has, and how it is written."""

    kind: str
    factor: Fraction
    names: tuple[str, ...]


def _measure(kind: str, factor: str, *names: str) -> Measure:
    return Measure(kind, Fraction(factor), names)


MEASURES = (
    _measure("length", "1", "m", "meters", "metres"),
    _measure("length", "1/100", "cm", "centimeters"),
    _measure("length", "1/1000", "mm", "millimeters"),
    _measure("length", "1000", "km", "kilometers"),
    _measure("length", "0.3048", "ft", "feet"),
    _measure("length", "0.0254", "in", "inches"),
    _measure("length", "0.9144", "yd", "yards"),
    _measure("length", "1609.344", "mi", "miles"),
    _measure("mass", "1", "g", "grams"),
    _measure("mass", "1000", "kg", "kilograms"),
    _measure("mass", "1/1000", "mg", "milligrams"),
    _measure("time", "1", "s", "seconds", "sec"),
    _measure("time", "60", "min", "minutes"),
    _measure("time", "3600", "h", "hours", "hr"),
    _measure("time", "86400", "days"),
    _measure("area", "1", "m^2", "square meters", "m²"),
    _measure("area", "1/10000", "cm^2", "square centimeters", "cm^{2}"),
    _measure("volume", "1", "m^3", "cubic meters"),
    _measure("volume", "1/1000000", "cm^3", "cubic centimeters"),
    _measure("volume", "1/1000", "L", "liters", "litres"),
    _measure("volume", "1/1000000", "mL", "milliliters"),
    _measure("speed", "1", "m/s", "meters per second", r"m\,s^{-1}", r"m s^{-1}", r"\frac{m}{s}"),
    _measure("speed", "1000/3600", "km/h", "kilometers per hour", r"\frac{km}{h}", "kph"),
    _measure("speed", "0.44704", "mph", "miles per hour"),
)
PLAIN_NAMES = ("apples", "students", "marbles", "dollars per hour", "people", "pages", "ways", "boxes")


def _with_unit(rng: Random, number: str, name: str) -> str:
    if "\\" in name:
        return rng.choice((rf"{number}\,\mathrm{{{name}}}", rf"{number}\ \mathrm{{{name}}}", f"{number} {name}"))
    if "^" in name:
        base, _, power = name.partition("^")
        return rng.choice((rf"{number}\text{{ {base}}}^{power}", f"{number} {name}", rf"{number}\,\mathrm{{{name}}}"))
    return rng.choice(
        (
            f"{number} {name}",
            rf"{number}\text{{ {name}}}",
            rf"{number} \text{{ {name}}}",
            rf"{number}~\mathrm{{{name}}}",
        )
        if " " not in name
        else (f"{number} {name}", rf"{number}\text{{ {name}}}", rf"{number} \text{{ {name}}}")
    )


def _amount(rng: Random) -> Fraction:
    return Fraction(rng.randint(2, 400), rng.choice((1, 1, 1, 2, 4, 10)))


def measures(rng: Random, truth: bool) -> Made | None:
    measure, number = rng.choice(MEASURES), _amount(rng)
    label = _with_unit(rng, decimal_text(number), rng.choice(measure.names))
    others = [other for other in MEASURES if other.kind == measure.kind and other.factor != measure.factor]
    if truth:
        ways = {
            "other spelling": _with_unit(rng, decimal_text(number), rng.choice(measure.names)),
            "no unit": decimal_text(number),
        }
        for other in others:
            converted = number * measure.factor / other.factor
            if _terminates(converted):
                ways["converted"] = _with_unit(rng, decimal_text(converted), rng.choice(other.names))
        name = rng.choice(sorted(ways))
        return Made(name, label, ways[name])
    other = rng.choice(others)
    alien = rng.choice([strange for strange in MEASURES if strange.kind != measure.kind])
    wrongly = number * other.factor / measure.factor
    ways = {
        "number changed": _with_unit(rng, decimal_text(number + 1), rng.choice(measure.names)),
        "unit changed": _with_unit(rng, decimal_text(number), rng.choice(other.names)),
        "other kind of unit": _with_unit(rng, decimal_text(number), rng.choice(alien.names)),
        "number changed, no unit": decimal_text(number + 1),
        "sign": _with_unit(rng, decimal_text(-number), rng.choice(measure.names)),
    }
    if _terminates(wrongly) and wrongly > Fraction(1, 10**6):
        ways["converted the wrong way"] = _with_unit(rng, decimal_text(wrongly), rng.choice(other.names))
    name = rng.choice(sorted(ways))
    return Made(name, label, ways[name])


def _terminates(number: Fraction) -> bool:
    return (10**12 * number).denominator == 1 and number < 10**12


def counted(rng: Random, truth: bool) -> Made:
    """A label without a unit, and an answer that says what is counted, or the other way round."""
    number = rng.randint(2, 5000)
    label, thing = str(number), rng.choice(PLAIN_NAMES)
    if rng.random() < 0.3:
        label = _with_unit(rng, label, thing)
    said = number if truth else number + rng.choice((1, -1, 10, number))
    text = grouped(said, ",") if said >= 1000 and rng.random() < 0.5 else str(said)
    return Made("counted things", label, rng.choice((text, _with_unit(rng, text, thing))))


def money(rng: Random, truth: bool) -> Made:
    cents = rng.randint(1, 500_000)
    label, plain = _price(rng, cents), f"{cents // 100}.{cents % 100:02d}"
    if truth:
        cent_names = (f"{cents} cents", rf"{cents}\text{{ cents}}", f"{cents}¢")
        if rng.random() < 0.3:
            return Made("cents", rng.choice((rf"\${plain}", f"{plain} dollars")), rng.choice(cent_names))
        return Made("price", label, _price(rng, cents))
    name, answer = rng.choice(
        (
            ("a cent more", _price(rng, cents + rng.choice((1, 10, 100)))),
            ("tenfold", _price(rng, 10 * cents)),
            ("other currency", rng.choice((f"€{plain}", f"{plain} euros", f"£{plain}"))),
            ("cents for dollars", f"{plain} cents"),
            ("loss", f"-{plain}"),
        )
    )
    if name in ("other currency", "cents for dollars"):
        label = rng.choice((rf"\${plain}", f"${plain}", f"{plain} dollars"))
    return Made(name, label, answer)


def _price(rng: Random, cents: int) -> str:
    plain = f"{cents // 100}.{cents % 100:02d}"
    thousands = f"{cents // 100:,}.{cents % 100:02d}"
    forms = [rf"\${plain}", f"${plain}", f"{plain} dollars", rf"\${thousands}", plain, f"{plain} USD"]
    forms += [rf"{plain}\text{{ dollars}}", rf"\$ {plain}", f"USD {plain}"]
    if cents % 100 == 0:
        forms += [rf"\${cents // 100}", f"{cents // 100} dollars"]
    return rng.choice(forms)


COMPOUND = (
    ("hours", "minutes", 60, ("hours", "h", "hrs"), ("minutes", "min")),
    ("minutes", "seconds", 60, ("minutes", "min"), ("seconds", "s")),
    ("feet", "inches", 12, ("feet", "ft"), ("inches", "in")),
    ("kg", "g", 1000, ("kg", "kilograms"), ("g", "grams")),
    ("pounds", "ounces", 16, ("pounds", "lb"), ("ounces", "oz")),
)


def compounds(rng: Random, truth: bool) -> Made:
    large, small, ratio, larges, smalls = rng.choice(COMPOUND)
    first, second = rng.randint(1, 12), rng.randint(1, ratio - 1)

    def both(one: int, other: int) -> str:
        joint = rng.choice((" ", " ", " and ", ", "))
        text = f"{one} {rng.choice(larges)}{joint}{other} {rng.choice(smalls)}"
        return rng.choice((text, rf"{one}\text{{ {large}}} {other}\text{{ {small}}}")) if joint == " " else text

    total = first * ratio + second
    label = rng.choice((both(first, second), f"{total} {small}"))
    if truth:
        return Made("converted", label, rng.choice((both(first, second), f"{total} {rng.choice(smalls)}")))
    name, answer = rng.choice(
        (
            ("first part only", f"{first} {large}"),
            ("second part only", f"{second} {small}"),
            ("other second part", both(first, second + 1 if second + 1 < ratio else second - 1)),
            ("other first part", both(first + 1, second)),
            ("parts swapped", f"{first} {small} {second} {large}" if first != second else both(first + 2, second)),
            ("first number", str(first)),
            ("as a decimal", f"{first}.{second} {large}"),
        )
    )
    if name == "as a decimal" and Fraction(f"{first}.{second}") * ratio == total:
        answer = f"{first + 1} {large}"
    if name in ("first number", "second part only", "as a decimal"):
        label = both(first, second)
    return Made(name, label, answer)


def angles(rng: Random, truth: bool) -> Made | None:
    degrees = rng.randint(1, 359)
    label = _angle(rng, degrees)
    turn = Fraction(degrees, 180)
    if truth:
        radians = rf"\frac{{{turn.numerator}\pi}}{{{turn.denominator}}}" if turn.denominator > 1 else r"\pi"
        if rng.random() < 0.2:
            return Made("radians", rf"{degrees}^\circ", radians)
        return Made("notation", label, rng.choice((_angle(rng, degrees), rf"\theta = {_angle(rng, degrees)}")))
    name, answer = rng.choice(
        (
            ("other angle", _angle(rng, degrees + rng.choice((1, 90, 180)))),
            ("sign", f"-{degrees}^\\circ"),
            ("other radians", rf"\frac{{{turn.numerator + turn.denominator}\pi}}{{{turn.denominator}}}"),
            ("square", f"{degrees}^2" if degrees > 1 else "2"),
        )
    )
    return Made(name, rf"{degrees}^\circ" if name == "other radians" else label, answer)


def _angle(rng: Random, degrees: int) -> str:
    marks = (r"^\circ", r"^{\circ}", "°", " degrees", r"\text{ degrees}", r"\degree")
    return f"{degrees}{rng.choice(marks)}"


FAMILIES: Families = {
    "measures": measures,
    "counted things": counted,
    "money": money,
    "compound measures": compounds,
    "angles": angles,
}
