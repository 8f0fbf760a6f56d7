"""Finds which answers to one prompt are equal, so that they can be counted as votes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from olmorl.deploy.evaluation.answer_file import completion_of
from olmorl.messages import Completion, Prompt
from olmorl.verifiers.scorer import VerifierScorer

_BY_ALGEBRA = ("math", "gsm8k")
_BY_TEXT = ("string_match", "multiple_choice", "re_search")
RIGHT = 0
"""The vote for the right answer. All solved answers equal the label, and so each other."""


def has_votes(datasets: Sequence[str]) -> bool:
    """Whether a row asks for one answer that can be compared with others."""
    return len(datasets) == 1 and datasets[0] in (*_BY_ALGEBRA, *_BY_TEXT)


async def votes(scorer: VerifierScorer, prompt: Prompt, group: Sequence[Completion]) -> list[int | None]:
    """A number for each completion: equal numbers are equal answers, None is no answer.

    Mathematics is equal where the verifier says so with one of the two answers as the label; other answers as text.
    """
    found: list[int | None] = []
    firsts: list[str] = []
    for completion in group:
        verdict = next(iter(completion.verdicts.values()), None)
        answer = verdict.extracted if verdict and verdict.method != "no_answer" else None
        if completion.solved or answer is None or not has_votes(prompt.datasets):
            found.append(RIGHT if completion.solved else None)
            continue
        number = await _first_equal(scorer, prompt, answer, firsts)
        if number is None:
            firsts.append(answer)
            number = len(firsts) - 1
        found.append(RIGHT + 1 + number)
    return found


async def _first_equal(scorer: VerifierScorer, prompt: Prompt, answer: str, firsts: Sequence[str]) -> int | None:
    by_algebra = prompt.datasets[0] in _BY_ALGEBRA
    plain = str if by_algebra else _plain
    for number, first in enumerate(firsts):
        if plain(first) == plain(answer) or (by_algebra and await _equal(scorer, prompt, answer, first)):
            return number
    return None


async def _equal(scorer: VerifierScorer, prompt: Prompt, answer: str, label: str) -> bool:
    asked = replace(prompt, ground_truths=(label,), thinking_opened=False)
    [verdict] = (await scorer.verify(asked, completion_of({"completion": f"\\boxed{{{answer}}}"}))).values()
    return verdict.reward == 1


def _plain(answer: str) -> str:
    """Words are compared without case and spacing."""
    return " ".join(answer.split()).casefold()
