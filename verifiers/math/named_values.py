"""Reads the values that the end of a text names, for a label that is a list: `a mean of 4 and a variance of 12`."""

from __future__ import annotations

import re
from collections.abc import Collection

from olmorl.verifiers.math.last_value import NUMBER, SENTENCE_END, normal_signs, unsure
from olmorl.verifiers.math.notation import normalise, unmark
from olmorl.verifiers.math.numbers import Policy, Quantity, equal, quantity
from olmorl.verifiers.math.units import with_unit
from olmorl.verifiers.math.words.spelled import in_digits

MAX_SENTENCES = 3
_RELATIVE = re.compile(
    r"\b(?:than|times|twice|half|as (?:many|much|old|long|far)|of|from|to|after|before|ago|in)\b", re.IGNORECASE
)
_EXACT = Policy(tolerance=0.0)
_PLAIN_VALUE = r"\$?(-?(?:\\[dt]?frac\{-?\d+\}\{\d+\}|\d+(?:[./]\d+)?))"
_NAMED_VALUE = re.compile(
    r"(?:(?<![\w\\^_+*/=-])(?<![+*/-] )([a-zA-Z])\s*=|\b([xyz])-(?:coordinate|intercept|value)\b(?: is| of| =| equals)?"
    r"|\b(abscissa|ordinate)\b(?: is| of| =)?|\bthe (larger|smaller|greater|bigger|first|second|third"
    r"|other)(?: [a-z]+)? is)"
    rf"\s*{_PLAIN_VALUE}(?=\$?(?:[,;)]|\.?\s|\.?$|\\))",
    re.IGNORECASE,
)
_COORDINATES = {"abscissa": "x", "ordinate": "y"}
_REGION = re.compile(r"[<>≤≥∞∪\[\]]|\\(?:[lg]eq?|cup|infty|in)(?![a-zA-Z])|\([^()]*,[^()]*\)")
_SEPARATOR = re.compile(r"[,;](?!\d{3}(?!\d))\s*(?:and\s)?|\s+and\s+")
_ITEM = re.compile(r"(?:([A-Za-z][A-Za-z' ]*?)\s*(?::|=|\bis\b)?\s*)?([^A-Za-z].*)", re.DOTALL)


def assigned(text: str) -> list[str]:
    """The last value of each variable or coordinate that the end of a text names: `so x = 4; then y = 3`."""
    found: dict[str, str] = {}
    for one in _NAMED_VALUE.finditer(normal_signs(text)):
        name = next(filter(None, one.groups()[:-1])).lower()
        found[_COORDINATES.get(name, name)] = one[one.re.groups]
    return [f"{name} = {value}" if len(name) == 1 else value for name, value in found.items()]


def names_all(label: str, ending: str) -> bool:
    """Whether the last sentences give the values of a list: each behind its name, or all in the list's order."""
    items = [_ITEM.fullmatch(item.strip()) for item in _SEPARATOR.split(label.strip(" ()[]{}"))]
    values = [quantity(item[2].strip()) if item else None for item in items]
    sentences = [one for one in SENTENCE_END.split(normal_signs(ending).strip()) if one.strip(" *_$")]
    names = [item[1] for item in items if item and item[1]]
    if len(items) < 2 or None in values or label[:1] == "[" or _REGION.search(" ".join(sentences[-MAX_SENTENCES:])):
        return False
    if names:
        return len(names) == len(items) == len(set(names)) and _named(
            names, values, " ".join(sentences[-MAX_SENTENCES:])
        )
    text = ""
    for sentence in sentences[: -MAX_SENTENCES - 1 : -1]:
        text = f"{in_digits(sentence)} . {text}"
        found = _values(text)
        if len(found) >= len(items):
            return len(found) == len(items) and all(map(_same, values, found))
    return False


def of_subject(subject: str, names: Collection[str], sentence: str) -> str:
    """The number behind the name that a question asks for, if each of several names of a sentence has one number.

    Empty otherwise: `Bob has 10 and Ann has 5`, but not `Bob has 5 more than Ann`.
    """
    if len(names) < 2 or subject not in sentence:
        return ""
    pieces = re.split(rf"\b({'|'.join(map(re.escape, names))})\b", normal_signs(sentence))
    said, behind = pieces[1::2], [in_digits(piece) for piece in pieces[2::2]]
    numbers = [list(NUMBER.finditer(piece)) for piece in behind]
    alone = len(set(said)) == len(said) > 1 and all(len(found) == 1 for found in numbers)
    if subject not in said or not alone or any(map(_RELATIVE.search, behind)):
        return ""
    place = said.index(subject)
    number = numbers[place][0]
    if unsure(behind[place][: number.start()], behind[place][number.end() :]):
        return ""
    return with_unit(number[0], behind[place][number.end() :])


def _named(names: list[str], values: list[Quantity | None], text: str) -> bool:
    """Whether the first number behind the last mention of each name is its value."""
    pieces = re.split(rf"\b({'|'.join(map(re.escape, names))})\b", text)
    behind = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    found = [_values(in_digits(behind.get(name, ""))) for name in names]
    return all(len(of_one) == 1 and _same(value, of_one[0]) for value, of_one in zip(values, found, strict=True))


def _values(text: str) -> list[Quantity | None]:
    """The numbers of a text. One that words around it deny or change is None."""
    return [
        None
        if unsure(text[: number.start()], text[number.end() :].partition(" . ")[0])
        else quantity(unmark(normalise(number[0])))
        for number in NUMBER.finditer(text)
    ]


def _same(value: Quantity | None, found: Quantity | None) -> bool:
    return value is not None and found is not None and equal(value, found, _EXACT)
