"""The math verifier: compares one final answer with the label, exactly in microseconds or by algebra in the pool."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Done, Outcome, WorkerProbe
from olmorl.verifiers.math.answer_parser import in_signs, is_sequence, read, read_label, settle
from olmorl.verifiers.math.extraction import MAX_ANSWER, final_answer
from olmorl.verifiers.math.matching import (
    asked_again,
    in_terms_of,
    in_unit_of,
    in_words_of,
    match,
    refusal,
    with_marked_unit,
)
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.question import UNKNOWN, MathQuestion, asked, comma_as_point
from olmorl.verifiers.math.words.wording import doubtful
from olmorl.verifiers.pool.pool import LatePool, Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

WARM = "olmorl.verifiers.math.algebra.check:warm"
EQUAL = "olmorl.verifiers.math.algebra.check:equal"
PROBE = WorkerProbe(EQUAL, (r"\frac{x^2-1}{x-1}", "1+x", Policy()), True)
SYMBOLIC_WARM = "olmorl.verifiers.math.symbolic:warm"
SYMBOLIC_EQUAL = "olmorl.verifiers.math.symbolic:equal"
SYMBOLIC_PROBE = WorkerProbe(SYMBOLIC_EQUAL, (r"\frac{x^2-1}{x-1}", "1+x"), True)
GSM8K_MARKER = "####"
MAX_TEXT = 200
"""Longest label, in characters, that is text and no mathematics."""
_OR = re.compile(r"\b(?:either|or)\b", re.IGNORECASE)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
POLICY = Policy()


class MathVerifier(AnswerVerifier):
    """The reward is 1 when the final answer equals the label, else 0."""

    def __init__(
        self, pool: Pool, policy: Policy = POLICY, last_number: bool = True, symbolic: LatePool | None = None
    ) -> None:
        """
        Args:
            pool: running, made with `preload=(WARM,)`.
            policy: the rules of agreement that a recipe may choose.
            last_number: without a box or a marker, the last number is the answer.
            symbolic: makes a pool with `preload=(SYMBOLIC_WARM,)`, for labels that our grammar does not read.
        """
        self._pool = pool
        self._symbolic = symbolic
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
        pointed = (comma_as_point(text), comma_as_point(truth)) if question.decimal_comma else (text, truth)
        if pointed[1] == truth:
            verdict = await self._verify(text, truth, question)
            if verdict.reward != 0 or pointed[0] == text:
                return verdict
        return await self._verify(*pointed, question)

    async def _verify(self, text: str, truth: str, question: MathQuestion) -> Verdict:
        answer = final_answer(text, self._last_number)
        if answer is None:
            return Verdict(reward=0.0, method="no_answer")
        truth, wanted, found = match(question, truth, answer)
        given = read(found.text)
        if reason := refusal(truth, answer, question) or asked_again(question, wanted, given):
            return Verdict(reward=0.0, extracted=answer.text, method=reason)
        settled = in_words_of(question, wanted, answer, found)
        if self._policy.units == "lenient":
            wanted = in_terms_of(question, wanted, given)
        policy = question.policy(self._policy, is_percentage=bool(wanted.number and wanted.number.percent))
        settled = settled or settle(wanted, given, policy)
        if settled is not None:
            return Verdict(reward=float(settled[0]), extracted=found.text, method=settled[1])
        signs = in_signs(found.text)
        if found.how == "sentence" and signs == found.text and doubtful(_OR.sub("", found.text)):
            return Verdict(reward=0.0, extracted=found.text, method="unclear")
        measured = in_unit_of(question, truth, signs) if self._policy.units == "lenient" else signs
        if measured is None:
            return Verdict(reward=0.0, extracted=found.text, method="unit")
        return await self._by_algebra(truth, measured, policy)

    async def _by_algebra(self, truth: str, answer: str, policy: Policy) -> Verdict:
        outcome, method = await self._compare(in_signs(with_marked_unit(truth)), answer, policy)
        if outcome == Done(None) and read_label(truth).number:
            return Verdict(reward=0.0, extracted=answer, method="number")
        if not isinstance(outcome, Done):
            return unscored(outcome, answer)
        if outcome.value is None and _is_text(truth):
            return Verdict(reward=0.0, extracted=answer, method="text")
        if outcome.value is None:
            return Verdict(reward=None, extracted=answer, error_kind="label", detail=f"cannot read {truth[:80]!r}")
        return Verdict(reward=float(outcome.value), extracted=answer, method=method)

    async def _compare(self, truth: str, answer: str, policy: Policy) -> tuple[Outcome, str]:
        """True or False, or None for an unreadable label; and the method that decided."""
        outcome = await self._pool.run(EQUAL, (truth, answer, policy), PROBE)
        if outcome != Done(None) or self._symbolic is None or read_label(truth).number:
            return outcome, "algebra"
        return await self._symbolic.run(SYMBOLIC_EQUAL, (truth, answer), SYMBOLIC_PROBE), "symbolic"

    async def close(self) -> None:
        if self._symbolic is not None:
            await self._symbolic.stop()

    def usable(self, label: Any) -> bool:
        return _shape_problem(label) is None and _simple(_label_text(label))

    async def problem(self, label: Any) -> str | None:
        shape = _shape_problem(label)
        if shape is not None:
            return shape
        truth = _label_text(label)
        if _simple(truth):
            return None
        outcome, _ = await self._compare(truth, truth, self._policy)
        if outcome == Done(True) or (outcome == Done(None) and _is_text(truth)):
            return None
        why = (
            "it is neither mathematics nor short text, or does not equal itself"
            if isinstance(outcome, Done)
            else str(outcome[-1])
        )
        return f"the math label {truth[:80]!r} cannot be used: {why}"


def _is_text(truth: str) -> bool:
    """Whether an unreadable label is short text, which an answer can repeat."""
    words = _COMMAND.sub("", truth)
    return len(truth) <= MAX_TEXT and truth.count("{") == truth.count("}") and any(map(str.isalpha, words))


def _simple(truth: str) -> bool:
    """Whether the fast path reads the label."""
    label = read_label(truth)
    simple = label.number or label.is_choice_label or label.word or label.numeral or label.clock
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
