"""Reads numbers and times of day in words: `twenty-one`, `three quarters`, `half past three`."""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = tuple(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
    """.split()  # noqa: SIM905
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate(_ONES)} | {word: 10 * ten for ten, word in enumerate(_TENS, 2)}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "twelfth": 12, "sixteenth": 16, "twentieth": 20, "hundredth": 100, "halve": 2,
}  # fmt: skip
NUMBER_WORD = rf"(?:{'|'.join(sorted((*_SMALL, 'hundred', 'dozen', *_LARGE), key=len, reverse=True))})"
_SPELLED = re.compile(
    rf"(?:an?\s+(?=hundred|thousand|million|billion|dozen))?{NUMBER_WORD}\b(?:(?:[\s-]+|\s+and\s+){NUMBER_WORD}\b)*",
    re.IGNORECASE,
)
_PART = re.compile(rf"[\s-]+({'|'.join(_PARTS)})s?\b(?!\s+(?:dollars?|past|to)\b)", re.IGNORECASE)
AND_PART = re.compile(rf"\s+and\s+(a|{NUMBER_WORD})[\s-]+({'|'.join(_PARTS)})s?\b", re.IGNORECASE)
"""As in `two and a half`, `one and two thirds`."""
_MIXED = re.compile(rf"({NUMBER_WORD})(?={AND_PART.pattern})", re.IGNORECASE)
_RATIO = re.compile(rf"\s+(?:out of|in(?=\s+{NUMBER_WORD}(?:\s+chances?\b|\W*$)))\s+({NUMBER_WORD})\b", re.IGNORECASE)
"""As in `one in four`."""
_ONE_PART = re.compile(
    r"(?:an?\s+)?(half|third|quarter)(?:\W*$|\s+(?:of\s+)?(?:an?|the|his|her|its|their)\s+(?=[a-z]))", re.IGNORECASE
)
"""All of the text, or in front of a thing: `half an hour`, `a quarter of a mile`."""
A_UNIT = (
    r"an?(?=\s+(?:hour|minute|second|day|week|month|year|inch|foot|yard|mile|meter|metre|pound|gallon|liter|litre|dollar)"
    rf"\s+and\s+(?:\d|(?:an?|one|{NUMBER_WORD})\b))"
)
"""The article of `an hour and a half`."""
_NOT_BEHIND = "".join(
    rf"(?<!\b{words} )"
    for words in (
        "the",
        "these",
        "those",
        "both",
        "all",
        "of",
        "or",
        "only",
        "other",
        "past",
        "quarter to",
        "minutes to",
    )
)
"""Words that refer to a number, or tell the time with it."""
_IN_TEXT = re.compile(
    rf"(?<![\w-])(?<!\d ){_NOT_BEHIND}"
    r"(?P<minus>(?:negative|minus)\s+)?"
    rf"(?!\w+(?: minutes)? (?:past|to {NUMBER_WORD}\b|o'clock)\b)(?P<number>(?!one\b(?!\s+(?:dollar|cent|hour|minute"
    rf"|hundred|thousand|million|and\b|in\b|out\b)|[\s-](?:half|third)))"
    rf"(?:{NUMBER_WORD}\b|an?\s+(?:hundred|thousand|million|billion|dozen)\b))",
    re.IGNORECASE,
)
_ONE_UNIT = re.compile(A_UNIT, re.IGNORECASE)
_CLOCK = re.compile(
    rf"(?:(?:an?\s+)?(half|quarter|twenty|ten|five|\d{{1,2}})(?:\s+minutes)?\s+(past|to)\s+)?({'|'.join(_ONES[1:13])}|\d{{1,2}})"
    r"(?:\s+o'?\s?clock)?(?:\s*([ap])\.?\s*m\.?)?",
    re.IGNORECASE,
)
_MINUTES = {"half": 30, "quarter": 15, "twenty": 20, "ten": 10, "five": 5}


def spelled(text: str) -> tuple[Fraction, int] | None:
    """The number that `text` starts with in words, and where it ends."""
    found = _SPELLED.match(text)
    if found is None:
        part = _ONE_PART.match(text)
        if part is None and (article := _ONE_UNIT.match(text)):
            return Fraction(1), article.end()
        return (Fraction(1, _PARTS[part[1].lower()]), part.end()) if part else None
    if (mixed := _MIXED.match(text)) and (whole := _value([mixed[1].lower()])) is not None:
        part = AND_PART.match(text, mixed.end())
        return (whole + part_size(part), part.end()) if part else None
    value = _value(re.findall(r"[a-z]+", found[0].lower()))
    if value is None:
        return None
    if part := AND_PART.match(text, found.end()):
        return value + part_size(part), part.end()
    if part := _PART.match(text, found.end()):
        return Fraction(value, _PARTS[part[1].lower()]), part.end()
    if (ratio := _RATIO.match(text, found.end())) and (under := _value(re.findall(r"[a-z]+", ratio[1].lower()))):
        return Fraction(value, under), ratio.end()
    return Fraction(value), found.end()


def part_size(part: re.Match[str]) -> Fraction:
    """The fraction in a match of AND_PART."""
    return Fraction(_SMALL.get(part[1].lower(), 1), _PARTS[part[2].lower()])


def in_digits(text: str) -> str:
    """The text with digits in place of numbers in words: `Eight pens cost $6`. A reference, `these two`, stays."""
    kept, position = [], 0
    for start in _IN_TEXT.finditer(text):
        place = start.start("number")
        found = spelled(text[place:]) if start.start() >= position else None
        if found is None or text.startswith("-", place + found[1]):
            continue
        kept += [text[position : start.start()], "-" if start["minus"] else "", str(found[0])]
        position = place + found[1]
    return "".join((*kept, text[position:]))


def _value(words: list[str]) -> int | None:
    """The number that the words make together. None if they make none, such as `one two`."""
    total = group = 0
    last = 10**15
    for word in words:
        if word in _SMALL:
            size = 1 if _SMALL[word] < 20 else 10
            if last <= size or (size == 10 and last < 100) or (last == 10 and not 0 < _SMALL[word] < 10):
                return None
            group, last = group + _SMALL[word], size
        elif word in ("hundred", "dozen"):
            if last == 100:
                return None
            group, last = (group or 1) * (100 if word == "hundred" else 12), 100
        elif word in _LARGE:
            total, group, last = total + (group or 1) * _LARGE[word], 0, 1000
    return total + group


def clock(text: str) -> tuple[int, int, int, str] | None:
    """Hour, minute, second and `a`, `p` or nothing, of `half past three` or `5 o'clock`."""
    found = _CLOCK.fullmatch(text)
    if found is None or not (found[1] or "clock" in text.lower()):
        return None
    hour = int(found[3]) if found[3].isdigit() else _SMALL[found[3].lower()]
    minute = 0
    if found[1]:
        minute = int(found[1]) if found[1].isdigit() else _MINUTES[found[1].lower()]
    if hour > 24 or minute > 59:
        return None
    if found[1] and found[2].lower() == "to":
        hour, minute = (hour - 1) or 12, 60 - minute
    return hour, minute % 60, 0, (found[4] or "").lower()
