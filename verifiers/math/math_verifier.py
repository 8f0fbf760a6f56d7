"""The math verifier: compares one final answer with the label, exactly in microseconds or by algebra in the pool."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Done, Outcome, Probe
from olmorl.verifiers.math.answer_parser import Reading, in_signs, odds_for_probability, of_option, read, read_label, settle
from olmorl.verifiers.math.extraction import MAX_ANSWER, Extracted, final_answer
from olmorl.verifiers.math.numbers import Policy, equal
from olmorl.verifiers.math.question import UNKNOWN, Question, asked, comma_as_point
from olmorl.verifiers.math.units import with_unit
from olmorl.verifiers.math.wording import doubtful, imagined
from olmorl.verifiers.pool.pool import LatePool, Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

WARM = "olmorl.verifiers.math.algebra.check:warm"
EQUAL = "olmorl.verifiers.math.algebra.check:equal"
PROBE = Probe(EQUAL, (r"\frac{x^2-1}{x-1}", "1+x", Policy()), True)
SYMBOLIC_WARM = "olmorl.verifiers.math.symbolic:warm"
SYMBOLIC_EQUAL = "olmorl.verifiers.math.symbolic:equal"
SYMBOLIC_PROBE = Probe(SYMBOLIC_EQUAL, (r"\frac{x^2-1}{x-1}", "1+x"), True)
GSM8K_MARKER = "####"
MAX_TEXT = 200
"""Longest label, in characters, that is text and no mathematics."""
_OR = re.compile(r"\b(?:either|or)\b", re.IGNORECASE)
_MEASURED = re.compile(r"(-?[\d.]+)( [a-zA-Z][a-zA-Z/^\d ]{0,12})")
_LETTERS = re.compile(r"[A-J]")
_SEVERAL_LETTERS = re.compile(r"\(?[A-J]\)?(?:[\s,;&]+(?:and )?\(?[A-J]\)?)+")
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
            policy: where people differ about what agrees.
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

    async def verify(self, text: str, label: Any, question: Question = UNKNOWN) -> Verdict:
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

    async def _verify(self, text: str, truth: str, question: Question) -> Verdict:
        found = final_answer(text, self._last_number)
        if found is None:
            return Verdict(reward=0.0, method="no_answer")
        if found.how == "sentence" and imagined(found.text):
            return Verdict(reward=0.0, extracted=found.text, method="unclear")
        if odds_for_probability(truth, found.text):
            return Verdict(reward=0.0, extracted=found.text, method="odds")
        wanted = read_label(truth)
        truth, found = _of_options(question, truth, found)
        wanted = read_label(truth)
        if wanted.is_choice_label and (option := question.option(wanted.choice)) and not _gives_letter(found):
            truth, wanted = option, read_label(option)
        if wanted.number and not wanted.number.value and question.counts_none(found.closing or found.text):
            return Verdict(reward=1.0, extracted=found.closing or found.text, method="none")
        if found.how == "closing" and wanted.number:
            return Verdict(reward=0.0, method="no_answer")
        found = _in_words(found, wanted)
        counted = bool(found.num_items and wanted.number)
        found = found._replace(text=found.num_items if counted else of_option(found.text, wanted))
        found = found._replace(text=question.without_bound(question.value_side(found.text)))
        given = read(found.text)
        if question.base and given.numeral and not wanted.numeral:
            wanted = read(f"{wanted.key}_{question.base}")
        if question.solved_for_another(wanted.text, given.text):
            return Verdict(reward=0.0, extracted=found.text, method="another unknown")
        if self._policy.units == "lenient":
            wanted = _in_unit_of(question, wanted, given)
        settled = settle(wanted, given, self._policy)
        if settled is not None:
            return Verdict(reward=float(settled[0]), extracted=found.text, method=settled[1])
        signs = in_signs(found.text)
        if found.how == "sentence" and signs == found.text and doubtful(_OR.sub("", found.text)):
            return Verdict(reward=0.0, extracted=found.text, method="unclear")
        outcome, method = await self._compare(in_signs(_with_marked_unit(truth)), signs)
        if outcome == Done(None) and wanted.number:
            return Verdict(reward=0.0, extracted=found.text, method="number")
        if not isinstance(outcome, Done):
            return unscored(outcome, found.text)
        if outcome.value is None and _is_text(truth):
            return Verdict(reward=0.0, extracted=found.text, method="text")
        if outcome.value is None:
            return Verdict(reward=None, extracted=found.text, error_kind="label", detail=f"cannot read {truth[:80]!r}")
        return Verdict(reward=float(outcome.value), extracted=found.text, method=method)

    async def _compare(self, truth: str, answer: str) -> tuple[Outcome, str]:
        """True or False, or None for an unreadable label; and the method that decided."""
        outcome = await self._pool.run(EQUAL, (truth, answer, self._policy), PROBE)
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
        outcome, _ = await self._compare(truth, truth)
        if outcome == Done(True) or (outcome == Done(None) and _is_text(truth)):
            return None
        why = (
            "it is neither mathematics nor short text, or does not equal itself"
            if isinstance(outcome, Done)
            else str(outcome[-1])
        )
        return f"the math label {truth[:80]!r} cannot be used: {why}"


def _with_marked_unit(truth: str) -> str:
    """`0.68 m` with its unit as text, for the grammar: a letter there is a variable."""
    measured = _MEASURED.fullmatch(truth.strip())
    marked = with_unit(measured[1], measured[2]) if measured else truth
    return truth if measured and marked == measured[1] else marked


def _of_options(question: Question, truth: str, found: Extracted) -> tuple[str, Extracted]:
    """A label of several letters, and an answer of as many without separators, or of the texts of the options."""
    letters = _LETTERS.findall(truth) if question.options and _SEVERAL_LETTERS.fullmatch(truth.strip()) else []
    if len(letters) < 2:
        return truth, found
    if found.text.isupper() and found.text.isalpha():
        return truth, found._replace(text=", ".join(found.text))
    if _SEVERAL_LETTERS.fullmatch(found.text.strip()):
        return truth, found
    return ", ".join(map(question.option, letters)), found


def _gives_letter(found: Extracted) -> bool:
    """Whether an answer names an option by its letter."""
    return any(read(text).choice for text in (found.text, found.closing) if text)


def _in_unit_of(question: Question, wanted: Reading, given: Reading) -> Reading:
    """A bare label in a unit of its question, if the answer is in another unit of the same kind."""
    number, said = wanted.number, given.number or given.stated
    if number is None or number.unit.dimensions or number.percent or said is None:
        return wanted
    units = question.label_units(said.unit)
    if units is None:
        return wanted
    quantities = [number._replace(unit=unit) for unit in units]
    same = next((one for one in quantities if equal(one, said, POLICY)), quantities[0])
    return wanted._replace(number=same, key="")


def _in_words(found: Extracted, wanted: Reading) -> Extracted:
    """What suits the label in the place of the last number: the last sentence for words, named values for a list."""
    if found.how != "last_list" and len(found.assigned) > 1 and wanted.text.count(",") + 1 == len(found.assigned) and "," not in found.text:
        return found._replace(text=", ".join(found.assigned))
    if found.closing and not found.text:
        return found if wanted.number else found._replace(text=found.closing)
    if not found.closing or wanted.number or not (wanted.word or wanted.is_choice_label):
        return found
    given = read(found.text)
    return found if given.word or given.choice else found._replace(text=found.closing)


def _is_text(truth: str) -> bool:
    """Whether an unreadable label is short text, which an answer can repeat."""
    words = _COMMAND.sub("", truth)
    return len(truth) <= MAX_TEXT and truth.count("{") == truth.count("}") and any(map(str.isalpha, words))


def _simple(truth: str) -> bool:
    """Whether the fast path reads the label."""
    label = read_label(truth)
    return bool(label.number or label.is_choice_label or label.word or label.numeral or label.clock)


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
