"""Families of plain numbers: integers, decimals, scientific notation, roundings."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.pairs import Families, Made

SEPARATORS = (",", "{,}", r"\,", r"\ ", r",\!", " ", "~")


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)


def spelled_integer(rng: Random, number: int) -> tuple[str, str]:
    """One way to write an integer, and its name."""
    ways = {
        "bare": str(number),
        "point zero": f"{number}.{'0' * rng.randint(1, 3)}",
        "in dollars": f"${number}$",
        "as text": rf"\text{{{number}}}",
        "bold": rf"\mathbf{{{number}}}",
        "reduced": rf"\frac{{{3 * number}}}{{3}}",
        "named": f"x = {number}",
        "in braces": f"{{{number}}}",
    }
    if number > 0:
        ways["plus"] = f"+{number}"
    if number < 0:
        ways["typographic minus"] = f"−{-number}"
        ways["minus and space"] = f"- {-number}"
    if abs(number) >= 1000:
        ways |= {f"thousands by {separator!r}": grouped(number, separator) for separator in SEPARATORS}
        if abs(number) >= 1_000_000:
            ways["thousands by apostrophes"] = grouped(number, "'")
        ways["scientific"] = scientific(rng, Fraction(number))
    name = rng.choice(sorted(ways))
    return name, ways[name]


def scientific(rng: Random, number: Fraction) -> str:
    """Exact scientific notation of a terminating decimal."""
    sign, digits, _ = Decimal(number.numerator * 10**30 // number.denominator).as_tuple()
    exponent = len(digits) - 31
    text = "".join(map(str, digits)).rstrip("0")
    mantissa = f"{'-' if sign else ''}{text[0]}{'.' + text[1:] if text[1:] else ''}"
    forms = (rf"{mantissa}\times 10^{{{exponent}}}", rf"{mantissa} \cdot 10^{{{exponent}}}", f"{mantissa}e{exponent}")
    return rng.choice(forms)


def decimal_text(number: Fraction) -> str:
    """A terminating decimal without an exponent."""
    whole = number.numerator * 10**30 // number.denominator
    digits = f"{abs(whole):031d}"
    text = f"{digits[:-30]}.{digits[-30:]}".rstrip("0").rstrip(".")
    return f"-{text}" if whole < 0 else text


def _magnitude(rng: Random) -> int:
    return rng.randint(1, 10 ** rng.choice((1, 2, 3, 4, 5, 6, 7, 9, 12)))


def fraction_text(rng: Random, number: Fraction, scale: int = 1) -> str:
    sign = "-" if number < 0 else ""
    top, bottom = abs(number.numerator) * scale, number.denominator * scale
    if bottom == 1:
        return f"{sign}{top}"
    command = rng.choice((r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"))
    forms = [
        f"{sign}{command}{{{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        f"{sign}{command} {{{top}}} {{{bottom}}}",
    ]
    if top < 10 and bottom < 10:
        forms.append(rf"{sign}\frac{top}{bottom}")
    if sign:
        forms += [rf"\frac{{-{top}}}{{{bottom}}}", rf"\frac{{{top}}}{{-{bottom}}}"]
    return rng.choice(forms)


def integers(rng: Random, truth: bool) -> Made:
    number = _magnitude(rng) * rng.choice((1, 1, 1, -1))
    label = rng.choice((str(number), spelled_integer(rng, number)[1]))
    if truth:
        name, answer = spelled_integer(rng, number)
        return Made(name, label, answer)
    changes = {
        "neighbour": number + rng.choice((1, -1)),
        "sign": -number,
        "tenfold": 10 * number,
        "digit appended": 10 * number + rng.randint(1, 9),
        "thousandth of it": number * 1000,
    }
    digits = str(abs(number))
    if len(digits) > 1 and digits[0] != digits[-1]:
        changes["digits swapped"] = int(digits[-1] + digits[1:-1] + digits[0])
    if len(digits) > 3:
        changes["group dropped"] = int(digits[:-3]) or 1
        changes["digit dropped"] = int(digits[1:])
    name = rng.choice(sorted(changes))
    return Made(name, label, spelled_integer(rng, changes[name])[1])


def _decimal(rng: Random) -> Fraction:
    places = rng.randint(1, 5)
    number = Fraction(rng.randint(1, 10 ** rng.randint(places, 7)), 10**places)
    return number * rng.choice((1, 1, 1, -1))


def _spelled_decimal(rng: Random, number: Fraction) -> tuple[str, str]:
    text = decimal_text(number)
    point = text if "." in text else f"{text}.0"
    ways = {
        "bare": text,
        "trailing zeros": point + "0" * rng.randint(1, 3),
        "as a fraction": fraction_text(rng, number),
        "scientific": scientific(rng, number),
        "in dollars": f"${text}$",
        "named": f"x = {text}",
    }
    if abs(number) < 1:
        ways["no zero before the point"] = text.replace("0.", ".", 1)
    if abs(number) >= 1000:
        whole, _, rest = text.partition(".")
        separator = rng.choice((",", "{,}", r"\,", r"\ "))
        ways["thousands"] = grouped(int(whole), separator) + (f".{rest}" if rest else "")
    name = rng.choice(sorted(ways))
    return name, ways[name]


def decimals(rng: Random, truth: bool) -> Made | None:
    number = _decimal(rng)
    label = decimal_text(number)
    if truth:
        name, answer = _spelled_decimal(rng, number)
        return Made(name, label, answer)
    digits = label.lstrip("-").replace(".", "")
    changes = {
        "sign": -number,
        "point shifted": number * rng.choice((Fraction(10), Fraction(1, 10))),
        "point dropped": Fraction(int(digits or 1)) * (1 if number > 0 else -1),
        "a per cent more": number * Fraction(101, 100),
        "first digit": number + (1 if number > 0 else -1),
    }
    name = rng.choice(sorted(changes))
    if changes[name] == number:
        return None
    return Made(name, label, _spelled_decimal(rng, changes[name])[1])


def scientifics(rng: Random, truth: bool) -> Made:
    number = Fraction(rng.randint(11, 9999), 1000) * Fraction(10) ** rng.choice((-9, -6, -5, -3, 4, 6, 8, 11, 15))
    label = scientific(rng, number)
    if truth:
        answer = rng.choice((scientific(rng, number), decimal_text(number)))
        return Made("notation", label, answer)
    changed, name = rng.choice(
        ((number * 10, "exponent"), (-number, "sign"), (number * Fraction(11, 10), "mantissa"), (1 / number, "inverse"))
    )
    if name == "inverse":
        changed = Fraction(int(1 / number) or 1)
    return Made(name, label, scientific(rng, changed))


def roundings(rng: Random, truth: bool) -> Made:
    """One irrational number, rounded to different places."""
    digits = math.isqrt(rng.choice((2, 3, 5, 6, 7, 10, 11, 13)) * rng.randint(1, 500) ** 2 * 10**40 + 7)
    places = sorted(rng.sample(range(9, 15), 2)) if truth else [rng.randint(2, 3), rng.randint(8, 14)]
    shown = [_rounded(digits, count) for count in places]
    if rng.random() < 0.5 and truth:
        shown.reverse()
    return Made(
        "many places" if truth else "few places", shown[1], shown[0] if truth else _rounded(digits + 10**18, places[0])
    )


def _rounded(digits: int, places: int) -> str:
    """A number of 20 decimals with fewer places."""
    return decimal_text(Fraction((digits + 10 ** (20 - places) // 2) // 10 ** (20 - places), 10**places))


FAMILIES: Families = {
    "integers": integers,
    "decimals": decimals,
    "scientific notation": scientifics,
    "roundings": roundings,
}
