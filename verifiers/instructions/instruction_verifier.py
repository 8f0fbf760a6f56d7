"""The instruction-following verifier. One check in the pool tests all constraints of an answer."""

from __future__ import annotations

from typing import Any

from olmorl.messages import Verdict
from olmorl.verifiers.check_outcomes import Done, Limit, WorkerProbe
from olmorl.verifiers.instructions import label_reader as labels
from olmorl.verifiers.instructions.constraint_table import find
from olmorl.verifiers.instructions.texts.language import is_language
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.verbs import starts_with_verb
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

WARM = "olmorl.verifiers.instructions.instruction_verifier:warm"
SATISFIED = "olmorl.verifiers.instructions.instruction_verifier:satisfied"
MAX_ANSWER = 400_000
"""The most characters of an answer. A longer answer gets reward 0."""
_PROBE = WorkerProbe(
    SATISFIED, ("Two words. No mark", [("punctuation:no_comma", {}), ("startend:quotation", {})]), [True, False]
)


class InstructionVerifier(AnswerVerifier):
    """The reward is 1 if all constraints are satisfied, or the share of satisfied constraints."""

    def __init__(self, pool: Pool, fraction: bool = False) -> None:
        """
        Args:
            pool: a running pool with `preload=(WARM,)`.
            fraction: whether the reward is the share of satisfied constraints.
        """
        self._pool = pool
        self._fraction = fraction

    async def verify(self, text: str, label: Any) -> Verdict:
        try:
            bound = labels.read(label)
        except ValueError as error:
            return Verdict(reward=None, error_kind="label", detail=str(error))
        if len(text) > MAX_ANSWER:
            return unscored(Limit("length"))
        outcome = await self._pool.run(SATISFIED, (text, bound), _PROBE)
        if not isinstance(outcome, Done):
            return unscored(outcome)
        share = sum(outcome.value) / len(bound)
        missed = [name for (name, _), held in zip(bound, outcome.value, strict=True) if not held]
        return Verdict(
            reward=share if self._fraction else float(not missed),
            method="constraints",
            detail=f"not satisfied: {', '.join(missed)}" if missed else "",
        )

    def usable(self, label: Any) -> bool:
        return _problem(label) is None

    async def problem(self, label: Any) -> str | None:
        return _problem(label)


def warm() -> None:
    """Load the models for languages, sentences and parts of speech. The pool preloads this."""
    is_language("warm", "en")
    sentences("One. Two.")
    starts_with_verb(["Start"])


def satisfied(args: tuple[str, list[labels.Bound]]) -> list[bool]:
    """Whether each constraint is satisfied. An answer without words satisfies none. A task of a worker."""
    answer, bound = args[0].strip(), args[1]
    worded = any(character.isalpha() for character in answer)
    numbered = worded or any(character.isdigit() for character in answer)
    verdicts = []
    for name, given in bound:
        constraint = find(name)
        content = numbered if constraint.wordless else worded
        verdicts.append(content and constraint.holds(answer, **constraint.bind(given)))
    return verdicts


def _problem(label: Any) -> str | None:
    try:
        labels.read(label)
    except ValueError as error:
        return str(error)
    return None
