"""What an answer is, read once: a number, a list of numbers, a choice letter, a word, a numeral of some base.

`settle` compares two readings in microseconds and says None when it takes algebra to decide.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.exact import Quantity, equal, quantity
from olmorl.verifiers.notation import TEXT, key, normalise, unmark

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_CHOICE_LABEL = re.compile(r"\(?([A-J])\)?\.?")
_CHOICE = re.compile(r"(?:(?:option|choice|answer)\s+)?(?:\(([A-J])\)|([A-J])(?=[.):]|$))", re.IGNORECASE)
_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|['./&!?,;])*|\d[\d:.,]*(?:st|nd|rd|th)?,?")
_CLOCK = {"am", "pm", "a.m", "p.m"}
_MATH_WORDS = {
    "pi",
    "infty",
    "infinity",
    "inf",
    "alpha",
    "beta",
    "theta",
    "phi",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "log",
    "exp",
}
_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?_\{?\s*(\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|sixteen)\s*\}?")
_BASE_WORDS = {w: i for i, w in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2)}
_SEPARATOR = re.compile(rf"[,;]|\s(?:and|or)\s|{TEXT}\s*(?:and|or)\s*\x03")
_SUMMED = re.compile(r"(?:[\d\s.,()+\-*/]|\\times|\\cdot|\\div|\\left|\\right)+")
_BINARY = re.compile(r"[\d)]\s*(?:[+\-*]|\\times|\\cdot|\\div)\s*[\d(+\-]")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![a-zA-Z])")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class Reading(NamedTuple):
    """One answer. At most one of the fields after `key` applies, except that a number may also be a list."""

    text: str
    """Normalised."""
    key: str
    """Equal keys are the same spelling."""
    number: Quantity | None = None
    items: tuple[Quantity, ...] = ()
    bracket: str = ""
    choice: str = ""
    word: str = ""
    numeral: tuple[str, str] | None = None
    """Digits and base."""
    is_choice_label: bool = False


def read(answer: str) -> Reading:
    """Read one answer; anything that is none of the simple forms has only `text` and `key`."""
    text = normalise(answer)
    plain = unmark(text).strip()
    if numeral := _BASE.fullmatch(plain.replace(TEXT, "")):
        return Reading(text, key(text), numeral=(numeral[1].lower().lstrip("0"), _base(numeral[2])))
    number = quantity(text)
    items, bracket = _items(text)
    choice = _CHOICE.match(plain) if number is None else None
    word = "" if number or items else _word(text, plain)
    letter = (choice[1] or choice[2]).upper() if choice else ""
    return Reading(text, key(text), number, items, bracket, letter, word, None, bool(_CHOICE_LABEL.fullmatch(plain)))


read_label = lru_cache(65536)(read)
"""Labels come again for every completion of a group."""


def settle(label: Reading, answer: Reading, strict_percent: bool) -> tuple[bool, str] | None:
    """Whether they agree and by which rule, or None when only algebra can tell."""
    if not answer.key:
        return False, "blank"
    if label.key == answer.key:
        return True, "identical"
    if label.is_choice_label:
        return label.choice == answer.choice, "choice"
    if label.number and answer.number and not (answer.items and label.items):
        return equal(label.number, answer.number, strict_percent), "number"
    if restated(label, answer):
        return False, "restated"
    if label.numeral or answer.numeral:
        return _same_numeral(label, answer), "numeral"
    if label.items and answer.items:
        return _same_items(label, answer, strict_percent)
    if label.word or (label.number and answer.word):
        return bool(label.word) and label.word == answer.word, "word"
    return None


def restated(label: Reading, answer: Reading) -> bool:
    """Whether the answer only repeats what was to be computed: a sum of plain numbers, an undone sum or integral."""
    if _UNDONE.search(answer.text) and not _UNDONE.search(label.text):
        return True
    return bool(label.number and not answer.number and not answer.items) and bool(
        _SUMMED.fullmatch(answer.text) and _BINARY.search(answer.text)
    )


def _word(text: str, plain: str) -> str:
    """The text as words, to be compared letter by letter; empty when its letters may be variables."""
    folded = " ".join(plain.casefold().replace("-", " ").split()).strip(" .,!?'")
    tokens = folded.split()
    if not tokens or not all(map(_TOKEN.fullmatch, tokens)):
        return ""
    marked = text.startswith(TEXT) and folded not in _MATH_WORDS
    return folded if marked or any(map(_is_word, tokens)) else ""


def _is_word(token: str) -> bool:
    letters = token.strip(".,!?';")
    if letters in _CLOCK:
        return True
    return len(letters) > 2 and letters[0].isalpha() and letters not in _MATH_WORDS and letters not in _ALPHABET


def _base(text: str) -> str:
    return "16" if text == "sixteen" else str(_BASE_WORDS.get(text, text))


def _same_numeral(label: Reading, answer: Reading) -> bool:
    """Digits agree, and so does the base where both name one."""
    if label.numeral and answer.numeral:
        return label.numeral == answer.numeral
    digits, other = (label.numeral, answer) if label.numeral else (answer.numeral, label)
    return digits is not None and digits[0] == other.key.lower().lstrip("0")


def _items(text: str) -> tuple[tuple[Quantity, ...], str]:
    """The numbers of a list, and what it stands in; empty unless it is a flat list of two or more numbers."""
    body = text.replace("\\{", "{").replace("\\}", "}").strip()
    bracket = ""
    if body[:1] in _BRACKETS and body[-1:] in ")]}":
        bracket = body[0] + body[-1]
        body = body[1:-1]
    parts = _SEPARATOR.split(body)
    if not 1 < len(parts) <= 64 and bracket != "{}":
        return (), bracket
    numbers = tuple(number for part in parts if (number := quantity(part.strip())))
    return (numbers if len(numbers) == len(parts) else ()), bracket


def _same_items(label: Reading, answer: Reading, strict_percent: bool) -> tuple[bool, str] | None:
    """Ordered within parentheses, unordered within braces or none; interval ends must be open or closed alike."""
    kinds = {label.bracket, answer.bracket}
    ordered = any(kind not in ("", "{}") for kind in kinds)
    if ordered and len(kinds) > 1 and kinds != {"", "()"}:
        return False, "list"
    if len(label.items) != len(answer.items):
        return (False, "list") if ordered or label.number is None else None
    pairs = zip(_in_order(label.items, ordered), _in_order(answer.items, ordered), strict=True)
    return all(equal(one, other, strict_percent) for one, other in pairs), "list"


def _in_order(items: tuple[Quantity, ...], ordered: bool) -> list[Quantity]:
    return list(items) if ordered else sorted(items, key=lambda item: item.value)
