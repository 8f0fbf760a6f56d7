"""The math verifier: compares one final answer with the label, exactly in microseconds or by algebra in the pool."""

from __future__ import annotations

from math import isfinite
from string import ascii_letters
from typing import Any

from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Done, WorkerProbe
from olmorl.verifiers.math.extraction import MAX_ANSWER, Extracted, final_answer
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.question import UNKNOWN, MathQuestion, asked
from olmorl.verifiers.math.reading import (
    Reading,
    in_signs,
    is_sequence,
    read,
    read_label,
    same_text,
    settle,
    unit_letters,
)
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

WARM = "olmorl.verifiers.math.algebra.check:warm"
EQUAL = "olmorl.verifiers.math.algebra.check:equal"
PROBE = WorkerProbe(EQUAL, (r"\frac{x^2-1}{x-1}", "1+x", Policy()), True)
GSM8K_MARKER = "####"
UNMARKED = ("line", "closing", "last_formula", "last_number", "last_list")
"""How an answer was found in a text that marks none. Its last sentence counts where the label is words."""
MAX_TEXT = 200
"""Longest label, in characters, that is text and no mathematics."""
POLICY = Policy()


class MathVerifier(AnswerVerifier):
    """The reward is 1 when the final answer equals the label, else 0."""

    def __init__(self, pool: Pool, policy: Policy = POLICY, last_number: bool = True) -> None:
        """
        Args:
            pool: running, made with `preload=(WARM,)`.
            policy: the rules of agreement that a recipe may choose.
            last_number: without a box or a marker, the last number is the answer.
        """
        self._pool = pool
        self._policy = policy
        self._last_number = last_number

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        if text is None or not text.strip():
            return await super().verify_row(prompt, completion, text, label)
        return await self.verify(text, label, asked(prompt))

    async def verify(self, text: str, label: Any, question: MathQuestion = UNKNOWN) -> Verdict:
        """Score `text`, a completion without its thinking, against a usable label.

        Args:
            question: what is known of it.
        """
        truth = _label_text(label)
        answer = final_answer(text, self._last_number)
        if answer is None:
            return Verdict(reward=0.0, method="no_answer")
        if any(same_text(truth, one, self._policy.exact_case) for one in _spellings(answer, truth)):
            return Verdict(reward=1.0, extracted=answer.text or truth, method="identical")
        letters = unit_letters(question, truth, answer.text)
        wanted, given = read_label(truth, letters), read(answer.text, letters)
        if answer.how in UNMARKED and (wanted.word or wanted.is_choice):
            given = read(answer.wholes[-1], letters)
        wanted, given = _with_options(question, wanted, given, letters)
        if question.restates(given.text, bool(given.number)) and not question.restates(
            wanted.text, bool(wanted.number)
        ):
            return Verdict(reward=0.0, extracted=answer.text, method="restated")
        policy = self._policy._replace(ordered=self._policy.ordered or question.is_ordered)
        settled = settle(wanted, given, policy, question)
        if settled is not None:
            right, method = settled
            method = "no_answer" if answer.how == "closing" and not right else method
            return Verdict(reward=float(right), extracted=answer.text, method=method)
        return await self._by_algebra(wanted, in_signs(wanted.text, letters), in_signs(given.text, letters), policy)

    async def _by_algebra(self, label: Reading, truth: str, answer: str, policy: Policy) -> Verdict:
        outcome = await self._pool.run(EQUAL, (truth, answer, policy), PROBE)
        if not isinstance(outcome, Done):
            return unscored(outcome, answer)
        if outcome.value is None and not (label.number or label.is_choice or _is_text(truth)):
            return Verdict(reward=None, extracted=answer, error_kind="label", detail=f"cannot read {truth[:80]!r}")
        method = "text" if outcome.value is None else "algebra"
        return Verdict(reward=float(bool(outcome.value)), extracted=answer, method=method)

    def usable(self, label: Any) -> bool:
        return _shape_problem(label) is None and _simple(_label_text(label))

    async def problem(self, label: Any) -> str | None:
        shape = _shape_problem(label)
        if shape is not None:
            return shape
        truth = _label_text(label)
        if _simple(truth):
            return None
        outcome = await self._pool.run(EQUAL, (truth, truth, self._policy), PROBE)
        if outcome == Done(True) or (outcome == Done(None) and _is_text(truth)):
            return None
        why = (
            "it is neither mathematics nor short text, or does not equal itself"
            if isinstance(outcome, Done)
            else str(outcome[-1])
        )
        return f"the math label {truth[:80]!r} cannot be used: {why}"


def _spellings(answer: Extracted, truth: str) -> tuple[str, ...]:
    """The texts that are right if they are the label: the answer, and what stands around it for a label of words."""
    return (answer.text, *(one for one in answer.wholes if len(truth) > 1 and not read_label(truth).number))


def _with_options(
    question: MathQuestion, wanted: Reading, given: Reading, letters: frozenset[str]
) -> tuple[Reading, Reading]:
    """Label and answer, both as the text of an option where one of them is a letter and the other is not."""
    if wanted.is_choice and not given.letter and (option := question.option(wanted.letter)):
        return read(option, letters), given
    if given.is_choice and not wanted.is_choice and (option := question.option(given.letter)):
        return wanted, read(option, letters)
    return wanted, given


def _is_text(truth: str) -> bool:
    """Whether an unreadable label is short text, which an answer can repeat."""
    first, *others = truth.split("\\")
    letters = first + "".join(part.lstrip(ascii_letters) for part in others)
    return len(truth) <= MAX_TEXT and truth.count("{") == truth.count("}") and any(map(str.isalpha, letters))


def _simple(truth: str) -> bool:
    """Whether the fast path reads the label."""
    label = read_label(truth)
    simple = label.number or (label.word and len(truth) <= MAX_TEXT) or label.numeral or label.is_choice
    return bool(simple) or is_sequence(label.text)


def _shape_problem(label: Any) -> str | None:
    if isinstance(label, bool) or not isinstance(label, (str, int, float)):
        return f"a math label is a string or a number, not {type(label).__name__}"
    truth = _label_text(label)
    if isinstance(label, float) and not isfinite(label):
        return f"a math label is a finite number, not {label}"
    if len(truth) > MAX_ANSWER:
        return f"the math label is longer than {MAX_ANSWER} characters"
    return None if read_label(truth).key else "the math label is empty"


def _label_text(label: Any) -> str:
    """The answer in a label: the whole label, the part after `####`, or the content of its box."""
    text = str(label)
    if GSM8K_MARKER in text:
        return text.rpartition(GSM8K_MARKER)[2].strip()
    if "\\boxed" in text and (found := final_answer(text, last_number=False)):
        return found.text
    return text
