"""Reads an answer once: as a number, a choice letter, a word, a time of day or a numeral of some base.

`settle` compares two readings in microseconds and says None when it takes algebra to decide.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.math import statements
from olmorl.verifiers.math.notation import END_TEXT, TEXT, folded, key, last_side, normalise, unmark
from olmorl.verifiers.math.numbers import Policy, Quantity, equal, quantity
from olmorl.verifiers.math.prose import stated
from olmorl.verifiers.math.units import MULTI_LETTER, is_known
from olmorl.verifiers.math.words import choices, spoken, times
from olmorl.verifiers.math.words.wording import conclusion, doubtful

_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?", re.ASCII)
_LITERAL = re.compile(r"-?0(?:[xX][\da-fA-F]+|[bB][01]+|[oO][0-7]+)", re.ASCII)
"""A number in base 16, 2 or 8 as in a program."""
_SEQUENCE = re.compile(r"[(\[{]?\s*(-?[\d.]+(?:[\s,;]+-?[\d.]+)+|[A-Z\d](?:[\s,;]+[A-Z\d]){2,})\s*[)\]}]?", re.ASCII)
_SEPARATORS = re.compile(r"[,;()\[\]{}]")
_ITEMS = re.compile(r"-?[\d.]+|[A-Z]")
_NUMERIC = frozenset("+-.0123456789")
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16,
}  # fmt: skip
_BASE = re.compile(rf"\(?([0-9A-Fa-f]+)\)?_\{{?\s*\(?(\d{{1,2}}|{'|'.join(_BASES)})\)?\s*\}}?")
_SUMMED = re.compile(r"(?:[\d\s.,()+\-*/]|\\times|\\cdot)+")
_BINARY = re.compile(r"[\d)]\s*(?:[+\-*]|\\times|\\cdot)\s*[\d(+\-]")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,\d+|\d{1,3}(?:[ .]\d{3})+,\d+|\d+,(?!\d{3}(?!\d))\d+)(?![\d,.]*\d)[^\d,]*")
"""A decimal comma: it does not group thousands."""
_ODDS = re.compile(r"\bodds\b.*\d\s*(?::|to)\s*\d", re.IGNORECASE)
_RATIO = re.compile(r":|\bto\b|\bodds\b")
_NO_VARIABLE = re.compile(
    rf"{TEXT}[^{END_TEXT}]*{END_TEXT}|\\(?:frac|cdot|times|div|sqrt|pi|approx|circ)(?![a-zA-Z])"
    rf"|(?<=[\d}}] )(?:{'|'.join(MULTI_LETTER)})\b"
)
_VARIABLE_NAME = re.compile(r"(?!\\angle)(?:\\?[a-zA-Z]+\s?)?[a-zA-Z](?:_\{?\w+\}?)?(?:\s?\([^()]*\))?")
_LETTER = re.compile(r"[a-zA-Z]")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![a-zA-Z])|\\frac\s*\{\s*(?:d|\\partial)\s*\}")


class Reading(NamedTuple):
    """One answer. At most one field after `key` is set, except that a sentence may be words and state a number."""

    text: str
    """Normalised."""
    key: str
    """Equal keys are the same spelling."""
    number: Quantity | None = None
    """A plain number, or the number that a sentence states."""
    stated: Quantity | None = None
    """The number of a sentence, even if the words in front name a thing, as in `Row 3`. Such a label is no number."""
    choice: str = ""
    word: str = ""
    clock: times.Time | None = None
    numeral: tuple[str, str] | None = None
    """Digits and base."""
    is_choice_label: bool = False


def _read(answer: str) -> Reading:
    """Read one answer. If it has none of the simple forms, only `text` and `key` are set."""
    if plain_number := _PLAIN_NUMBER.fullmatch(answer):
        places = len(plain_number[1] or "")
        value = Fraction(answer.replace(",", ""))
        return Reading(answer, answer, Quantity(value, Fraction(1, 10**places) if places else None))
    if literal := _LITERAL.fullmatch(answer.strip()):
        return Reading(answer, answer.strip().lower(), Quantity(Fraction(int(literal[0], 0)), None))
    text = normalise(answer)
    plain = unmark(text).strip()
    if plain[:1] == "{" and plain[-1:] == "}" and "{" not in plain[1:]:
        plain = plain[1:-1].strip()
    if signs := _spoken(plain):
        text = plain = normalise(signs)
    if "_" in plain and (numeral := _BASE.fullmatch(plain.rpartition("=")[2].strip())):
        return Reading(text, key(text), numeral=(numeral[1].lower().lstrip("0"), _base(numeral[2])))
    if date := times.date(plain):
        return Reading(text, key(text), word=date)
    if clock := times.time(plain):
        return Reading(text, key(text), clock=clock)
    is_label = choices.is_label(plain)
    number = quantity(text) or _number_as_text(text) or _calculated(text)
    if number is not None:
        return Reading(text, key(text), number, is_choice_label=is_label)
    letter = choices.letter(plain)
    said, named = (None if letter else stated(text)) or (None, False)
    word = statements.word(text, plain)
    return Reading(text, key(text), None if named else said, said, letter, word, is_choice_label=is_label)


def in_signs(answer: str) -> str:
    """The answer, with signs in place of words that mean the same: `\\mathbb{R}` for `all real numbers`."""
    return _spoken(unmark(normalise(answer)).strip()) or answer


def _spoken(plain: str) -> str | None:
    """The signs for an answer in words, or for what its sentence concludes."""
    return spoken.in_signs(plain) or (spoken.in_signs(conclusion(plain)) if plain[-1:].isalnum() else None)


def of_option(answer: str, label: Reading) -> str:
    """The answer without the letter of its option, unless the label names one."""
    return answer if label.choice or label.is_choice_label else choices.without_letter(answer)


def odds_for_probability(label: str, answer: str) -> bool:
    """Whether an answer gives odds where the label has none. Odds of 1 to 4 are a probability of 1/5."""
    return bool(_ODDS.search(answer)) and not _RATIO.search(label)


def _number_as_text(text: str) -> Quantity | None:
    """The number in `\\text{64}`."""
    inside = text.removeprefix(TEXT).removesuffix(END_TEXT)
    whole = len(inside) == len(text) - 2 and TEXT not in inside
    return quantity(inside.strip()) if whole and inside.strip()[:1] in {*_NUMERIC, "("} else None


def _calculated(text: str) -> Quantity | None:
    """The result of a calculation with units, `v = 72 km/h = 20 m/s`. Algebra reads no units in it."""
    ahead, _, value = last_side(text)
    number = quantity(value.strip()) if ahead else None
    if number is None or not is_known(number.unit) or doubtful(ahead):
        return None
    first, *others = (_NO_VARIABLE.sub(" ", side) for side in ahead.split("="))
    named = _VARIABLE_NAME.fullmatch(first.strip())
    if any(map(_LETTER.search, others if named else [first, *others])):
        return None
    return number._replace(name=first.replace(" ", "")) if named else number


read = lru_cache(4096)(_read)
"""Cached: one check reads an answer several times, and completions of a group often have the same one."""
read_label = lru_cache(65536)(_read)
"""Cached: every completion of a group has the same label."""


def settle(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    """Whether they agree and by which rule, or None when only algebra can tell."""
    if not answer.key:
        return False, "blank"
    if label.key == answer.key:
        return True, "identical"
    if label.is_choice_label:
        return label.choice == answer.choice, "choice"
    for compare in (_as_sequences, _as_numbers, _as_numerals, _as_words):
        if (verdict := compare(label, answer, policy)) is not None:
            return verdict
    if not policy.exact_case and folded(label.text) == folded(answer.text):
        return True, "identical"
    return None


def is_sequence(text: str) -> bool:
    """Whether a label is numbers or letters with only spaces between them: a row or a grid. They are no product."""
    return " " in text.strip() and not _SEPARATORS.search(text) and bool(_SEQUENCE.fullmatch(" ".join(text.split())))


def _as_sequences(label: Reading, answer: Reading, _: Policy) -> tuple[bool, str] | None:
    """Compare rows of numbers or letters, item by item."""
    if label.number or not is_sequence(label.text):
        return None
    given = _SEQUENCE.fullmatch(answer.text)
    items = _ITEMS.findall(given[1]) if given else []
    return items == _ITEMS.findall(label.text), "sequence"


def _as_numbers(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    if decimals := _decimals(label, answer, policy):
        return equal(*decimals, policy), "number"
    if label.word and answer.word and statements.same_word(label.word, answer.word, policy):
        return True, "word"
    given = answer.number or answer.stated
    if label.number is None or given is None or label.number.bare_letter:
        return None
    return equal(label.number, given, policy), "number"


def _as_numerals(label: Reading, answer: Reading, _: Policy) -> tuple[bool, str] | None:
    """Compare numerals of a base and times of day, and refuse an answer that only repeats the question."""
    if restated(label, answer):
        return False, "restated"
    if label.numeral or answer.numeral:
        return _same_numeral(label, answer), "numeral"
    if label.clock and answer.clock:
        return times.same_time(label.clock, answer.clock), "time"
    if label.clock and label.clock[3] and answer.number:
        return False, "time"
    return None


def _as_words(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    if label.word:
        return statements.says(label.word, unmark(answer.text), policy), "word"
    return (False, "word") if label.number and answer.word else None


def _decimals(label: Reading, answer: Reading, policy: Policy) -> tuple[Quantity, Quantity] | None:
    """Both as decimals, if one is written with a comma and the other with a point."""
    if "," not in label.text and "," not in answer.text:
        return None
    in_label = policy.decimal_comma and _DECIMAL_COMMA.fullmatch(label.text)
    comma, point = (label, answer) if in_label else (answer, label)
    if point.number is None or point.number.step is None or not _DECIMAL_COMMA.fullmatch(comma.text):
        return None
    number = quantity(comma.text.replace(".", "").replace(",", "."))
    if number is None:
        return None
    return (number, point.number) if comma is label else (point.number, number)


def restated(label: Reading, answer: Reading) -> bool:
    """Whether the answer repeats the question without computing it: a sum of numbers, a `\\sum` or an integral."""
    if _UNDONE.search(last_side(answer.text)[2]) and not _UNDONE.search(label.text):
        return True
    return bool(label.number) and bool(_SUMMED.fullmatch(answer.text) and _BINARY.search(answer.text))


def _base(text: str) -> str:
    return str(_BASES.get(text, text))


def _same_numeral(label: Reading, answer: Reading) -> bool:
    """Whether digits and base agree. A plain answer is in the label's base; a plain label is in base 10."""
    if label.numeral and answer.numeral:
        return label.numeral == answer.numeral
    if label.numeral:
        return label.numeral[0] == answer.key.lower().lstrip("0")
    return answer.numeral is not None and answer.numeral == (label.key, "10")
