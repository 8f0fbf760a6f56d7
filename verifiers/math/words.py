"""The few words that count: number words, words that deny, doubt or bound a number, and sets that have a sign."""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: value for value, word in enumerate(_ONES.split())} | {
    word: 10 * ten for ten, word in enumerate(_TENS.split(), 2)
}
_LARGE = {"hundred": 100, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "twelfth": 12, "hundredth": 100, "halve": 2,
}  # fmt: skip
NUMBER_WORD = rf"(?:{'|'.join((*_SMALL, *_LARGE))})\b"
_SPELLED = re.compile(
    rf"(?P<number>(?:an?\s+(?=hundred|thousand|million|billion|dozen))?{NUMBER_WORD}"
    rf"(?:(?:[\s-]+|\s+and\s+){NUMBER_WORD})*)?(?:(?P<joint>[\s-]+|\s+and\s+(?:an?|one)\s+|an?\s+|)"
    rf"(?P<part>(?:{'|'.join(_PARTS)})s?\b(?!\s+(?:grade|of the))))?",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[?]")


def _set(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


DENIALS = _set("not never cannot neither nor wrong incorrect false impossible unlikely doubt untrue")
HEDGES = DENIALS | _set("or either maybe perhaps possibly probably guess unsure uncertain whether ?")
MODALS = _set("might may could")
DOUBTS = HEDGES | MODALS | _set("unless if except anything too refuse")
BOUNDS = _set(
    "least most than under below above over exceeding between nearly almost twice half double triple times minus plus",
    "multiple factor divisible root reciprocal opposite successor after before against third quarter no unlike beyond",
    "within except divisor divisors factors multiples base but any",
)
GUESSES = _set("doubt whether guess unsure uncertain unlikely maybe perhaps possibly")
_BEHIND = _set("squared cubed plus minus half halves tens tenths thirds factorial")
_REALS, _NONE = r"\mathbb{R}", r"\emptyset"
SPOKEN = {
    **dict.fromkeys(("infinity", "positive infinity"), r"\infty"),
    **dict.fromkeys(("negative infinity", "minus infinity"), r"-\infty"),
    **dict.fromkeys(("all real numbers", "all reals", "the set of all real numbers"), _REALS),
    **dict.fromkeys(("empty set", "the empty set", "no solution", "no solutions", "no real solutions"), _NONE),
    **dict.fromkeys(("there is no solution", "there are no solutions", "there are no real solutions"), _NONE),
    "all integers": r"\mathbb{Z}", "dne": "does not exist", "not defined": "undefined",
    "infinitely many solutions": "infinitely many",
}  # fmt: skip
"""Answers in words, and the signs that mean the same."""


def spelled(text: str) -> tuple[Fraction, int] | None:
    """The number that `text` starts with in words, `twenty-one`, `two thirds`, `one and a half`; and where it ends."""
    found = _SPELLED.match(text)
    if found is None or not (found["number"] or found["part"]):
        return None
    value = _value(words(found["number"])) if found["number"] else 1
    if value is None:
        return None
    if not found["part"]:
        return Fraction(value), found.end("number")
    part = Fraction(1, _PARTS[found["part"].lower().removesuffix("s")])
    return (value + part if "and" in (found["joint"] or "") else value * part), found.end()


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
            group, last = (group or 1) * _LARGE[word], 100
        elif word in _LARGE:
            total, group, last = total + (group or 1) * _LARGE[word], 0, 1000
    return total + group


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def other_number(text: str, value: Fraction) -> bool:
    """Whether a text begins with a number in words that is another."""
    found = spelled(text)
    return found is not None and found[0] != value


def has_number(text: str) -> bool:
    """Whether a number word is in a text."""
    return any(word in _SMALL for word in words(text))


def doubtful(text: str) -> bool:
    """Whether text denies something or leaves it open."""
    return _any(words(text), DOUBTS)


def denied(text: str) -> bool:
    return _any(words(text), DENIALS)


def changed_ahead(text: str) -> bool:
    """Whether the words in front of a number in its sentence deny, doubt or bound it."""
    found = words(text)
    return _any(found, DOUBTS - MODALS | BOUNDS) or not MODALS.isdisjoint(found[-3:])


def changed_nearby(ahead: str, clause: str = "") -> bool:
    """Whether the last words in front of a number in a text that may hold anything deny, doubt or bound it.

    Args:
        clause: with the verb; it says whether the number is a guess.
    """
    found = words(ahead)
    if not GUESSES.isdisjoint(words(clause)):
        return True
    modal = found[-1:] == ["be"] and not MODALS.isdisjoint(found[-2:-1])
    near = found[-2:] if found[-1:] and found[-1] in ("of", "than", "most", "least", "to", "by") else found[-1:]
    return modal or _any(found[-4:], HEDGES) or _any(near, BOUNDS)


def changed_behind(text: str) -> bool:
    """Whether the words behind a number deny, doubt or scale it."""
    found = words(text)
    return _any(found, DOUBTS) or not _BEHIND.isdisjoint(found[:3])


def hedged_behind(text: str) -> bool:
    """Whether the first words behind a number, in a text that may hold anything, deny or doubt it."""
    found = words(text)
    return _any(found[:3], HEDGES) or not _BEHIND.isdisjoint(found[:3])


def imagined(sentence: str) -> bool:
    """Whether a sentence only looks at a number, and concludes nothing: `Suppose x = 7`."""
    found = words(sentence)
    looks = {"let", "suppose", "assume", "consider", "try"} | ({"if"} if "," not in sentence else set())
    return not looks.isdisjoint(found[:1]) and {"so", "then"}.isdisjoint(found)


def unsure(text: str) -> bool:
    """Whether the writer denies or doubts in the first person: `I do not know which`."""
    found = words(text)
    return "i" in found and _any(found, HEDGES)


def _any(found: list[str], changing: frozenset[str]) -> bool:
    return any(word in changing or word.endswith("n't") for word in found)


_RETRACTION = re.compile(
    r"(?:no|wait|actually|oops|sorry|correction|hmm)\b\s*[,.!…-]|scratch that|\?|or\b"
    r"|but (?:maybe|perhaps|possibly|it)\b"
    r"|(?:(?:this|that|it)\s+)?(?:is|are|seems|was|may be|might be)"
    r"(?:n't|\s+(?:not|wrong|incorrect|impossible|too|a guess))\b|which (?:is|was) (?:wrong|incorrect|impossible)"
    r"|(?:maybe|perhaps|i am not|i'm not|i doubt|not sure)\b",
    re.IGNORECASE,
)


def retracts(behind: str) -> bool:
    """Whether the text right behind an answer takes it back: `is wrong`, `or 6`, `No, wait`."""
    return bool(_RETRACTION.match(behind))
