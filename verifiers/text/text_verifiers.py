"""The text verifiers: string match, token F1, multiple choice and regular expression."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from olmorl.messages import Verdict
from olmorl.verifiers.check_outcomes import Done, WorkerProbe
from olmorl.verifiers.math.extraction import TAIL, final_answer
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.text.choice import choice
from olmorl.verifiers.text.squad import words
from olmorl.verifiers.verifier import AnswerVerifier, unscored

MATCHES = "olmorl.verifiers.text.text_verifiers:matches"
_REGEX_PROBE = WorkerProbe(MATCHES, ("a+", "baa"), True)
MOST_MARKS = 8
"""An answer with the words of a reference may be at most this many times as long."""
_TAG = re.compile(r"</?answer>")
_FINISH = re.compile(r"<finish>(.*?)</finish>", re.IGNORECASE | re.DOTALL)


class _TextVerifier(AnswerVerifier):
    """A usable label is a text with words, a number, or a list of these with one entry per reference."""

    def usable(self, label: Any) -> bool:
        return bool(references(label))

    async def problem(self, label: Any) -> str | None:
        return None if self.usable(label) else f"the label must be text that is not empty, not {label!r:.80}"


class StringMatch(_TextVerifier):
    """1 if the text, or its marked final answer, has the words of a reference in the same order."""

    async def verify(self, text: str, label: Any) -> Verdict:
        answers, wanted = readings(text), references(label)
        longest = MOST_MARKS * (max(map(len, wanted)) + 8)
        near = [words(answer) for answer in answers if len(answer.strip()) <= longest]
        matched = bool(near) and any(words(reference) in near for reference in wanted)
        return Verdict(reward=float(matched), extracted=answers[-1][:2048], method="string")


class TokenF1(_TextVerifier):
    """The harmonic mean of word precision and word recall, for the best reference."""

    async def verify(self, text: str, label: Any) -> Verdict:
        answer = readings(text)[-1]
        said = Counter(words(answer))
        best = max(_f1(said, Counter(words(reference))) for reference in references(_decoded(label)))
        return Verdict(reward=best, extracted=answer[:2048], method="f1")


class Finished(_TextVerifier):
    """1 if the text in the first `<finish>` tags has the words of a reference, as in open-instruct's `re_search`."""

    async def verify(self, text: str, label: Any) -> Verdict:
        found = _FINISH.search(text)
        if found is None or not found[1].strip():
            return Verdict(reward=0.0, method="finish", detail="no text in <finish> tags")
        matched = any(words(reference) == words(found[1]) for reference in references(_decoded(label)))
        return Verdict(reward=float(matched), extracted=found[1].strip()[:2048], method="finish")

    def usable(self, label: Any) -> bool:
        is_object = isinstance(label, str) and label.lstrip().startswith("{")
        return not is_object and super().usable(label)


class MultipleChoice(_TextVerifier):
    """1 if the final answer has the letter of the label."""

    async def verify(self, text: str, label: Any) -> Verdict:
        letter = choice(text)
        wanted = str(label).strip().strip("()[].:").upper()
        return Verdict(reward=float(letter == wanted), extracted=letter, method="choice")

    def usable(self, label: Any) -> bool:
        return isinstance(label, str) and bool(re.fullmatch(r"[(\[]?[A-Ja-j][)\]]?[.:]?", label.strip()))

    async def problem(self, label: Any) -> str | None:
        return None if self.usable(label) else f"a multiple-choice label is one letter from A to J, not {label!r:.80}"


class RegexMatch(_TextVerifier):
    """1 if the regular expression of the label matches. Runs in the pool, because a pattern may never finish."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def verify(self, text: str, label: Any) -> Verdict:
        outcome = await self._pool.run(MATCHES, (str(label), text[-TAIL:]), _REGEX_PROBE)
        if not isinstance(outcome, Done):
            return unscored(outcome)
        return Verdict(reward=float(outcome.value), method="regex")

    def usable(self, label: Any) -> bool:
        if not isinstance(label, str) or not label:
            return False
        try:
            re.compile(label)
        except (re.error, RecursionError, OverflowError):
            return False
        return True

    async def problem(self, label: Any) -> str | None:
        return None if self.usable(label) else f"the label is not a regular expression: {label!r:.80}"


def matches(args: tuple[str, str]) -> bool:
    """Whether the pattern matches anywhere in the text. A task of a worker."""
    pattern, text = args
    return re.search(pattern, text) is not None


def references(label: Any) -> list[str]:
    """The texts of a label; an empty list if the label cannot be used."""
    given = label if isinstance(label, (list, tuple)) else [label]
    texts = [str(one) for one in given if isinstance(one, (str, int, float)) and not isinstance(one, bool)]
    return texts if len(texts) == len(given) and all(words(text) for text in texts) else []


def readings(text: str) -> list[str]:
    """The whole text, then its final answer if the answer is marked."""
    found = final_answer(text, last_number=False)
    whole = _TAG.sub("", text[-TAIL:])
    return [whole] if found is None else [whole, found.text]


def _decoded(label: Any) -> Any:
    """The label, decoded if it is a list as JSON text."""
    if not isinstance(label, str) or not label.lstrip().startswith("["):
        return label
    try:
        decoded = json.loads(label)
    except (ValueError, RecursionError):
        return label
    return decoded if references(decoded) else label


def _f1(said: Counter[str], wanted: Counter[str]) -> float:
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total()) if shared else 0.0
