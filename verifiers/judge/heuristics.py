"""The scores of the local judge: deterministic word counts, without any model."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

_QUESTION = re.compile(
    r"\[request\]\n(?P<request>.*?)\n\[end of the request\]\n"
    r"(?:\[reference\]\n(?P<reference>.*?)\n\[end of the reference\]\n)?"
    r".*?^(?P<delimiter>[0-9a-f]{32})\n(?P<answer>.*)\n(?P=delimiter)$",
    re.DOTALL | re.MULTILINE,
)
_WORD = re.compile(r"\w+")
LONG_WORD = 4
"""A word with at least this many letters belongs to the subject of a request."""
LONG_ANSWER = 120
"""An open answer with more words loses score."""


class Asked(NamedTuple):
    """The parts of a question in the form of the built-in templates."""

    request: str
    reference: str | None
    answer: str


def parse(question: str) -> Asked | None:
    """The parts of a question to the judge; None if it has another form."""
    found = _QUESTION.search(question)
    return None if found is None else Asked(found["request"], found["reference"], found["answer"])


def grade(asked: Asked) -> int:
    """The grade of an answer, from 1 to 10."""
    share = (
        quality(asked.answer, asked.request) if asked.reference is None else agreement(asked.answer, asked.reference)
    )
    return 1 + round(9 * share)


def agreement(answer: str, reference: str) -> float:
    """The harmonic mean of word precision and word recall."""
    said, wanted = Counter(_words(answer)), Counter(_words(reference))
    total = said.total() + wanted.total()
    return 2 * (said & wanted).total() / total if total else 0.0


def quality(answer: str, request: str) -> float:
    """From 0 to 1: full for half of the request's long words, without repetition, in at most `LONG_ANSWER` words.

    Text outside the subject can only lower it.
    """
    said = _words(answer)
    subject = {word for word in _words(request) if len(word) >= LONG_WORD}
    if not said or not subject:
        return 0.0
    relevance = min(2 * len(subject & set(said)) / len(subject), 1.0)
    variety = len(set(said)) / len(said)
    return relevance * variety * min(LONG_ANSWER / len(said), 1.0)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
