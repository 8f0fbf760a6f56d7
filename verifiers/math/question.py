"""What a question tells of its label: its units, its options, and the expression that it asks to work out."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from olmorl.messages import Prompt
from olmorl.verifiers.math.notation import DOLLAR, key, normalise
from olmorl.verifiers.math.units import SCALES, Unit, is_known, measured, shown

MAX_QUESTION = 4096
"""Characters at the end of a prompt that are read."""
MAX_EXPRESSION = 200

_OPTION = re.compile(r"\(([A-J])\)\s*|(?<![\w(])([A-J])[).:]\s+")
_MARKUP = re.compile(r"^(?:\s|\\ |\})+|(?:\s|\\q?quad|\\(?:text(?:bf|rm)?|mathrm|mathbf)\s*\{|[,;.$])+$")
"""Around the text of an option: what belongs to the letter before or behind it."""
_ASKED = re.compile(
    r"\b(?:how many|how much|in|into|to|number of)\s+(?:the\s)?([a-zA-Z][^,;?!.$]{1,40})", re.IGNORECASE
)
"""In front of the unit that is asked for."""
_PRICE = re.compile(r"\\?\$\s?\d[\d,.]*(?![^\s$]*\$)")
_MEASURE = re.compile(r"(?<=[\d$}])\s?([a-zA-Zμ°Ω]{1,12}(?:/[a-zA-Z]{1,12})?)(?![a-zA-Z])")
"""Behind a number."""
_REWRITES = ("simplif", "reduc", "lowest", "convert", "express", "write", "rationali", "decimal")
_ORDERS = tuple(f"{kind} order" for kind in ("increasing", "decreasing", "ascending", "descending")) + tuple(
    f"from {kind} to" for kind in ("least", "smallest", "lowest", "greatest", "largest", "highest")
)
_ENGLISH = frozenset(["the", "is", "of", "what", "how", "find", "if", "are", "and", "to"])
_LOOKS = str.maketrans("", "", "{} $")


class MathQuestion(NamedTuple):
    """What is known of a question."""

    text: str = ""
    written: str = ""
    """Its signs, without spaces and braces."""
    units: frozenset[Unit] = frozenset()
    """All units in it."""
    measures: frozenset[Unit] = frozenset()
    """Those behind a number."""
    asked: frozenset[Unit] = frozenset()
    """Those that it asks for: `how many minutes`, `in degrees`."""
    scales: frozenset[int] = frozenset()
    """A dozen, if it counts in dozens."""
    options: tuple[tuple[str, str], ...] = ()
    """Letter and text of each option of a multiple choice."""
    is_count: bool = False
    """Whether it asks for a number of things."""
    is_ordered: bool = False
    """Whether it asks for a list in an order."""
    rewrites: bool = False
    """Whether it asks for another form of an expression."""
    in_english: bool = False
    has_decimal_commas: bool = False
    """Whether its language writes 2.000 for two thousand and 0,5 for a half."""

    def option(self, letter: str) -> str:
        """The text of an option. Empty if there is none of that letter."""
        return dict(self.options).get(letter, "")

    def restates(self, answer: str, is_number: bool) -> bool:
        """Whether an answer is an expression of the question, as it is written there, and so works nothing out."""
        operates = "\\" in answer or any(sign in answer for sign in "+*/^=<>-")
        if not operates or len(answer) > MAX_EXPRESSION or self.options or (is_number and not self.rewrites):
            return False
        sought = _written(answer)
        at = self.written.find(sought) if len(sought) > 1 else -1
        outside = self.written[max(0, at - 1) : at] + self.written[at + len(sought) : at + len(sought) + 1]
        return at >= 0 and not any(sign.isdigit() or sign in "+*/^=<>-\\" for sign in outside)


UNKNOWN = MathQuestion()


def asked(prompt: Prompt) -> MathQuestion:
    """The question in a prompt: its last message, or its text."""
    if isinstance(prompt.messages, str):
        return _question(prompt.messages[-MAX_QUESTION:])
    content = prompt.messages[-1].get("content") if prompt.messages else ""
    return _question(content[-MAX_QUESTION:]) if isinstance(content, str) else UNKNOWN


@lru_cache(1024)
def _question(text: str) -> MathQuestion:
    if not text.strip():
        return UNKNOWN
    lower = text.lower()
    words = set(lower.replace("?", " ").replace(",", " ").split())
    units = set(shown(text))
    measures = {one for symbol in _MEASURE.findall(text) for one in shown(f"\x02{symbol}\x03")}
    measures.update(shown("dollar") if _PRICE.search(text) else ())
    asked_for = (measured(f" {phrase}") for phrase in _ASKED.findall(text))
    english = not words.isdisjoint(_ENGLISH)
    return MathQuestion(
        text=text,
        written=_written(text),
        units=frozenset(units | measures),
        measures=frozenset(measures),
        asked=frozenset(found.unit for found in asked_for if found is not None and is_known(found.unit)),
        scales=frozenset(size for word, size in SCALES.items() if not words.isdisjoint((word, word + "s"))),
        options=_options(text),
        is_count="how many" in lower or "number of" in lower,
        is_ordered=any(order in lower for order in _ORDERS),
        rewrites=any(verb in lower for verb in _REWRITES),
        in_english=english,
        has_decimal_commas=not english and any(sign.islower() and not sign.isascii() for sign in text),
    )


def _options(text: str) -> tuple[tuple[str, str], ...]:
    """The options that the end of a question lists, from A on."""
    marks = list(_OPTION.finditer(text))
    letters = "".join(mark[1] or mark[2] for mark in marks)
    start = letters.rfind("A")
    if start < 0 or len(letters) - start < 2 or not "ABCDEFGHIJ".startswith(letters[start:]):
        return ()
    marks = marks[start:]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    pairs = zip(marks, ends, strict=True)
    return tuple((mark[1] or mark[2], _MARKUP.sub("", text[mark.end() : end])) for mark, end in pairs)


@lru_cache(4096)
def _written(text: str) -> str:
    """The signs of a text, without spaces and braces."""
    return key(normalise(text).replace(DOLLAR, "")).translate(_LOOKS)
