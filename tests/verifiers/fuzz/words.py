"""Families that are no formulas: choice letters, words, yes and no, times of day, numerals of other bases."""

from __future__ import annotations

from random import Random

from tests.verifiers.fuzz.pairs import Families, Made

NOUNS = (
    "east", "west", "north", "south", "triangle", "hexagon", "parabola", "ellipse", "Maria", "Evelyn", "Monday",
    "Tuesday", "rational", "irrational", "even", "odd", "red", "blue", "converges", "diverges", "increasing",
    "decreasing", "isosceles triangle", "the red car", "Prime", "composite",
    "listen", "silent", "cardioid", "rectangle", "sphere",
    "geometric", "arithmetic", "neither", "Thursday", "Sunday", "cylinder", "pentagon", "undefined", "infinitely many",
)  # fmt: skip
JUDGEMENTS = (
    ("yes", "no"),
    ("true", "false"),
    ("even", "odd"),
    ("convergent", "divergent"),
    ("possible", "impossible"),
)
DIGITS = "0123456789ABCDEF"


def choices(rng: Random, truth: bool) -> Made:
    letter = rng.choice("ABCDE")
    label = rng.choice((letter, f"({letter})", rf"\text{{{letter}}}", rf"\textbf{{({letter})}}"))
    if truth:
        return Made("written", label, _choice(rng, letter))
    other = rng.choice([another for another in "ABCDE" if another != letter])
    wrong = {
        "other letter": _choice(rng, other),
        "two letters": rng.choice((f"{letter}, {other}", rf"{letter} \text{{ or }} {other}", f"{letter} and {other}")),
        "number": str(rng.randint(1, 20)),
        "doubled": letter * 2,
    }
    name = rng.choice(sorted(wrong))
    return Made(name, label, wrong[name])


def _choice(rng: Random, letter: str) -> str:
    forms = (
        "{}",
        "({})",
        "{}.",
        "{})",
        r"\text{{{}}}",
        r"\textbf{{({})}}",
        r"\mathrm{{{}}}",
        "Option {}",
        r"\text{{({})}}",
    )
    return rng.choice(forms).format(letter)


def texts(rng: Random, truth: bool) -> Made:
    word = rng.choice(NOUNS)
    label = rng.choice((word, rf"\text{{{word}}}"))
    if truth:
        forms = (
            word,
            word.capitalize(),
            word.upper(),
            rf"\text{{{word}}}",
            rf"\text{{ {word.capitalize()} }}",
            f"{word}.",
            rf"\textbf{{{word}}}",
        )
        return Made("written", label, rng.choice(forms))
    letters = list(word)
    rng.shuffle(letters)
    shuffled = "".join(letters)
    wrong = {
        "other word": rng.choice([other for other in NOUNS if other != word]),
        "negated": f"not {word}",
        "two words": f"{word} and {rng.choice([other for other in NOUNS if other != word])}",
        "misspelt": word[:-1],
        "number": str(rng.randint(0, 20)),
    }
    if shuffled.lower() != word.lower():
        wrong["letters shuffled"] = shuffled
    name = rng.choice(sorted(wrong))
    return Made(name, label, rng.choice((wrong[name], rf"\text{{{wrong[name]}}}")))


def judgements(rng: Random, truth: bool) -> Made:
    pair = rng.choice(JUDGEMENTS)
    label, other = rng.sample(pair, 2)
    said = label if truth else other
    styles = (
        said,
        said.capitalize(),
        said.upper(),
        rf"\text{{{said}}}",
        rf"\text{{{said.capitalize()}}}",
        f"**{said.capitalize()}**",
        f"{said}.",
    )
    return Made(
        "agrees" if truth else "denies",
        rng.choice((label, label.capitalize(), rf"\text{{{label.capitalize()}}}")),
        rng.choice(styles),
    )


def times(rng: Random, truth: bool) -> Made:
    hour, minute, half = rng.randint(1, 12), rng.randint(0, 59), rng.choice("ap")
    label = _time(rng, hour, minute, half)
    if truth:
        return Made("written", label, _time(rng, hour, minute, half))
    name, answer = rng.choice(
        (
            ("minute", _time(rng, hour, (minute + 1) % 60, half)),
            ("hour", _time(rng, hour % 12 + 1, minute, half)),
            ("half of the day", _time(rng, hour, minute, "p" if half == "a" else "a")),
            ("hour only", str(hour)),
        )
    )
    return Made(name, label, answer)


def _time(rng: Random, hour: int, minute: int, half: str) -> str:
    mark = rng.choice(
        (f" {half}.m.", f" {half.upper()}M", f"{half}m", rf"\text{{ {half.upper()}M}}", rf"\text{{ {half}.m.}}")
    )
    return f"{hour}:{minute:02d}{mark}"


def numerals(rng: Random, truth: bool) -> Made | None:
    base = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 16))
    number = rng.randint(base, base**5)
    label = _numeral(rng, number, base)
    if truth:
        return Made("written", label, _numeral(rng, number, base))
    name, answer = rng.choice(
        (
            ("other number", _numeral(rng, number + 1, base)),
            ("other base", _numeral(rng, number, base).rsplit("_", 1)[0] + f"_{{{base + 1}}}"),
            ("digits reversed", f"{_digits(number, base)[::-1]}_{{{base}}}"),
        )
    )
    return (
        None
        if name == "digits reversed" and _digits(number, base).strip("0") == _digits(number, base)[::-1].strip("0")
        else Made(name, label, answer)
    )


def _numeral(rng: Random, number: int, base: int) -> str:
    digits = _digits(number, base)
    forms = [f"{digits}_{{{base}}}", rf"({digits})_{{{base}}}", rf"{digits}_{{({base})}}"]
    forms += [f"{digits}_{base}"] if base < 10 else []
    return rng.choice(forms)


def _digits(number: int, base: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, base)
        text = DIGITS[digit] + text
    return text


FAMILIES: Families = {
    "choice letters": choices,
    "texts": texts,
    "judgements": judgements,
    "times of day": times,
    "numerals": numerals,
}
