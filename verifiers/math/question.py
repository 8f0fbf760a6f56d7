"""Reads what a question tells about its label: the units of a bare number, its base, the options, whether it counts."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from olmorl.messages import Prompt
from olmorl.verifiers.math.notation import last_side, normalise, unmark
from olmorl.verifiers.math.units import DOLLARS, ONE, YEAR, Dimensions, Unit, is_known, named
from olmorl.verifiers.math.words.languages import COMMA_LANGUAGES, language, unit_words

MAX_QUESTION = 4096
"""Characters at the end of a prompt that are read."""

_KINDS = {
    "radian": "angle", "fahrenheit": "celsius", "kelvin": "celsius", "months": "time",
    "euro": "money", "sterling": "money", "yen": "money", "rupee": "money",
}  # fmt: skip
"""Dimensions that measure the same thing as another, though they do not convert."""
_SYMBOLS = re.compile(r"(?:\d\s?|\bin )([a-zA-Zμ°Ω/]{1,8})(?![a-zA-Z])")
"""What may be symbols of units: behind a number, or behind `in`."""
_WORD = re.compile(r"[a-zA-Z]{3,}|[€£¥₹¢°%]|\^?\\circ")
_IMPLIED = (
    (re.compile(r"\\?\$\s?\d[\d,.]*(?![^\s$]*\$)"), DOLLARS),
    (re.compile(r"\bhow old\b|\bages?\b", re.IGNORECASE), YEAR),
)
"""A dollar in front of a number that is no formula; and ages."""
_SECOND = re.compile(r"\b(?:the|a|his|her|every|each) second\b|\bsecond\s+[a-z]", re.IGNORECASE)
"""The ordinal number."""
_ASKED = re.compile(r"\b(?:how many|in|into|to|to the nearest|number of)\s([a-zA-Z/]{1,12})(?![a-zA-Z])", re.IGNORECASE)
_UNKNOWN = re.compile(
    r"\bsolve (?:[^.?!]{0,100} )?for \$?([a-zA-Z])\b(?!,| and)|\bmake \$?([a-zA-Z])\$? the subject", re.IGNORECASE
)
_SOLVED = re.compile(r"([a-zA-Z])\s*=")
_NONE = re.compile(
    r"(?:^none\b|^no (?=(?:[a-z-]+ ){0,3}[a-z]+s\b)|\b(?:has|have|are|is|exists?|were|was)\s(?:no|none)\b)"
    r"(?!\s(?:more|less|fewer|other|longer|doubt|need|one|idea|clue|way|answer|problem|reason|information)\b)"
    r"[^\d,;]{0,100}(?:,?\s(?:because|since|as)\b.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_OPTIONS = (re.compile(r"\(([A-J])\)\s*"), re.compile(r"(?<![\w(])([A-J])[).:]\s+"))
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+(?!\.?\d)")
_DECIMAL = re.compile(r"(?<![\d,(])\d+,(?:\d{1,2}|\d{4,})(?![\d,)])")
_ACCENT = re.compile(r"[À-ÖØ-öø-ÿ¿¡]")
_ENGLISH = re.compile(r"\b(?:the|is|of|what|how|find|if|are|and|to)\b", re.IGNORECASE)
_COMMA = re.compile(r"(?<![\d(\[{,;])(\d+)\{?,\}?(?=(?:\d{1,2}|\d{4,})(?![\d,;)\]}]))")
_SPACE = re.compile(r"[\s$]|\\[,;!]")
_OPTIONAL_SPACE = r"(?:[\s$]|\\[,;!])*"
_BOUND = re.compile(r"(?:there (?:are|is) )?at (most|least)\s+", re.IGNORECASE)
_MOST = re.compile(r"\b(?:largest|greatest|maxim\w*|highest|most)\b", re.IGNORECASE)
_LEAST = re.compile(r"\b(?:smallest|least|minim\w*|fewest|lowest)\b", re.IGNORECASE)
_ASKS = (
    r"\b(?:what is|find|determine|calculate|compute) (?:the|its) "
    r"(?:(?:total|exact|shaded|lateral|surface|maximum) ){0,2}"
)
_SIZES: dict[Dimensions, re.Pattern[str]] = {
    (("length", 1),): re.compile(rf"{_ASKS}(area|volume)\b", re.IGNORECASE),
    (("length", 2),): re.compile(rf"{_ASKS}(volume)\b", re.IGNORECASE),
}
"""What is asked for, that is measured in another power of a length."""
_BASES = {"binary": "2", "octal": "8", "hexadecimal": "16", "decimal": "10"}
_BASE = re.compile(r"\b(?:in|to|into) (?:(binary|octal|hexadecimal|decimal)|base[- ](\d{1,2}))\b", re.IGNORECASE)
_COUNT = re.compile(r"\bhow many\b|\bnumber of\b|\bhow much\b", re.IGNORECASE)


class MathQuestion(NamedTuple):
    """What is known of a question."""

    units: frozenset[Unit] = frozenset()
    """All units in it."""
    asked: frozenset[Unit] = frozenset()
    """Those that it asks for: `how many minutes`, `in degrees`."""
    is_count: bool = False
    """Whether it asks for a number of things."""
    options: tuple[tuple[str, str], ...] = ()
    """Letter and text of each option of a multiple choice."""
    decimal_comma: bool = False
    """Whether its language writes 2.000 for two thousand and 0,5 for a half."""
    base: str = ""
    """Of the numeral that it asks for."""
    text: str = ""
    unknown: str = ""
    """The variable that it says to solve for."""

    def solved_for_another(self, label: str, answer: str) -> bool:
        """Whether an answer, unlike the label, gives another variable than the question asks for."""
        names = [name[1] if (name := _SOLVED.match(text)) else "" for text in (label, answer)]
        return bool(self.unknown and names[1]) and names[0] == self.unknown != names[1]

    def option(self, letter: str) -> str:
        """The text of an option. Empty if there is none of that letter."""
        return dict(self.options).get(letter, "")

    def value_side(self, answer: str) -> str:
        """The value in an answer that repeats the asked expression: `10x + 3 = 11`. Else the answer."""
        ahead, _, value = last_side(answer)
        signs = list(map(re.escape, _SPACE.sub("", ahead)))
        if len(signs) < 2 or not value.strip():
            return answer
        asked = rf"(?<![\w+*/^\\-]){_OPTIONAL_SPACE.join(signs)}(?![\w+*/^=(]|\s*[+*/^=(<>-])"
        return value.strip() if re.search(asked, self.text) else answer

    def without_bound(self, answer: str) -> str:
        """The number in `at most 3`, if the question asks for the most, or in `at least 3` for the least."""
        bound = _BOUND.match(answer)
        asks = bound and (_MOST if bound[1].casefold() == "most" else _LEAST)
        return answer[bound.end() :] if bound and asks and asks.search(self.text) else answer

    def counts_none(self, sentence: str) -> bool:
        """Whether a sentence says that there are none of the things that the question counts."""
        return self.is_count and bool(_NONE.search(unmark(normalise(sentence))))

    def label_units(self, given: Unit) -> list[Unit] | None:
        """The units that a bare label may be in, beside an answer in a given unit.

        None if it may be in the given one: it is asked for, or the question has no unit for the same thing.
        """
        if not is_known(given):
            return None
        if (size := _SIZES.get(given.dimensions)) and (asked := size.search(self.text)):
            return [Unit(dimensions=(("length", 2 if asked[1].lower() == "area" else 3),))]
        for units in (self.asked, self.units):
            alike = self._alike(units, given)
            if alike:
                return None if given in alike else alike
        return None

    def _alike(self, units: frozenset[Unit], given: Unit) -> list[Unit]:
        """The units for what the given one measures, also as products and quotients."""
        alike = [unit for unit in units if _kinds(unit.dimensions) == _kinds(given.dimensions)]
        choices = [[unit for unit in units if unit.dimensions == ((name, 1),)] for name, _ in given.dimensions]
        if all(choices):
            powers = [power for _, power in given.dimensions]
            alike += [
                Unit(prod(map(pow, (unit.factor for unit in chosen), powers), start=ONE), given.dimensions)
                for chosen in product(*choices)
            ]
        return alike


UNKNOWN = MathQuestion()


def asked(prompt: Prompt) -> MathQuestion:
    """The question in a prompt: its last message, or its text."""
    if isinstance(prompt.messages, str):
        return _question(prompt.messages[-MAX_QUESTION:])
    content = prompt.messages[-1].get("content") if prompt.messages else ""
    return _question(content[-MAX_QUESTION:]) if isinstance(content, str) else UNKNOWN


@lru_cache(4096)
def _question(text: str) -> MathQuestion:
    text = _SECOND.sub(" ", text)
    words = [
        *_WORD.findall(text),
        *" ".join(unit_words(text)).split(),
        *(word for symbols in _SYMBOLS.findall(text) for word in symbols.split("/")),
    ]
    found = {unit for word in words if (unit := named("°" if "circ" in word else word)) and is_known(unit)}
    found |= {unit for pattern, unit in _IMPLIED if pattern.search(text)}
    asked = {
        unit for words in _ASKED.findall(text) for word in words.split("/") if (unit := named(word)) and is_known(unit)
    }
    unknown, base = _UNKNOWN.search(text), _BASE.search(text)
    radix = (base[2] or _BASES[base[1].lower()]) if base else ""
    return MathQuestion(
        frozenset(found),
        frozenset(asked),
        bool(_COUNT.search(text)),
        _options(text),
        _with_comma(text),
        radix,
        text,
        unknown[1] or unknown[2] if unknown else "",
    )


def _options(text: str) -> tuple[tuple[str, str], ...]:
    """The options, if their letters are A, B, C and so on, each once."""
    for marks in _OPTIONS:
        found = list(marks.finditer(text))
        letters = [mark[1].upper() for mark in found]
        if len(found) > 1 and "".join(letters) == "ABCDEFGHIJ"[: len(found)]:
            ends = [*(mark.start() for mark in found[1:]), len(text)]
            return tuple(
                (letter, text[mark.end() : end].strip(" \n,;."))
                for letter, mark, end in zip(letters, found, ends, strict=True)
            )
    return ()


def _with_comma(text: str) -> bool:
    """Whether its language has decimal commas, or it has one and is no English."""
    if _ENGLISH.search(text):
        return False
    return language(text) in COMMA_LANGUAGES or bool(_DECIMAL.search(text) or _ACCENT.search(text))


def comma_as_point(text: str) -> str:
    """A text of a language with decimal commas, with points: `2.000,5` is 2000.5."""
    return _COMMA.sub(r"\1.", _THOUSANDS.sub(lambda number: number[0].replace(".", ""), text))


def _kinds(dimensions: Dimensions) -> Dimensions:
    return tuple(sorted((_KINDS.get(name, name), power) for name, power in dimensions))
