"""Reads times of day and dates: `3:30 p.m.`, `half past three in the afternoon`, `the 14th of February`."""

from __future__ import annotations

import re

from olmorl.verifiers.math.words import spelled
from olmorl.verifiers.math.words.wording import doubtful

Time = tuple[int, int, int, str]
"""Hour, minute, second, and `a`, `p` or nothing."""

_CLOCK = re.compile(
    r"(\d{1,2})(?:\s*(?::|\.(?=\d\d\s?[ap]))\s*(\d{2}))?(?:\s*:\s*(\d{2}))?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE
)
_HALF_OF_DAY = re.compile(r"\s+(?:in the (?:(morning)|afternoon|evening)|at night)$", re.IGNORECASE)
_AT = re.compile(
    r"^(?:[A-Za-z' ]{1,100}\s)?(?:at|is|by|was|shows|reads)\s+(?:exactly )?(?=[a-z\d ]+(?:past|to|clock)|\d+:\d\d"
    r"|\d+ [ap]\.?m)",
    re.IGNORECASE,
)
"""In front of the time of day that a sentence ends with."""
_MONTH = "(January|February|March|April|May|June|July|August|September|October|November|December)"
_ANY_MONTH = re.compile(_MONTH, re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?\b", re.IGNORECASE)
_BRACKETED = re.compile(r"\s*\([^()]*\)$")
_NUMERIC = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}/\d{1,2}/\d{4}")


def date(plain: str) -> str:
    """A date in digits as it is; else day and month, if they are all the numbers of a text. Empty if there is none."""
    if _NUMERIC.fullmatch(plain):
        return plain
    if not _ANY_MONTH.search(plain):
        return ""
    named = _DAY_FIRST.findall(plain) + [(day, month) for month, day in _MONTH_FIRST.findall(plain)]
    if len(named) != 1 or len(re.findall(r"\d+", _BRACKETED.sub("", plain))) != 1 or doubtful(plain):
        return ""
    return f"{named[0][1].capitalize()} {int(named[0][0])}"


def time(plain: str) -> Time | None:
    """A time of day: `3:30 p.m.`, `15:30`, `3 PM`."""
    if plain[-1:].isalpha() and (half := _HALF_OF_DAY.search(plain)):
        plain = f"{plain[: half.start()]} {'a' if half[1] else 'p'}m"
    if plain[:1].isalpha():
        plain = _AT.sub("", _BRACKETED.sub("", plain))
    found = _CLOCK.fullmatch(plain)
    if found is None:
        return spelled.clock(plain) if plain[-1:].isalpha() else None
    if not (found[2] or found[4]):
        return None
    hour, minute, second = (int(part or 0) for part in found.groups()[:3])
    return (hour, minute, second, (found[4] or "").lower()) if hour < 25 and minute < 60 and second < 60 else None


def same_time(label: Time, answer: Time) -> bool:
    """Whether hours and minutes agree, and also a.m. and p.m. if both sides tell them."""
    if label[1:3] != answer[1:3]:
        return False
    if (label[3] and answer[3]) or not (label[3] or answer[3]):
        return label == answer
    return label[0] == answer[0] or _hour(label) == _hour(answer)


def _hour(moment: Time) -> int:
    """Of the day, from 0 to 23."""
    return moment[0] % 12 + 12 * (moment[3] == "p") if moment[3] else moment[0]
