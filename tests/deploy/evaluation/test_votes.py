"""Which answers to a prompt are one vote."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from olmorl.config import Verifiers
from olmorl.deploy.evaluation.answer_file import completion_of
from olmorl.deploy.evaluation.votes import votes
from olmorl.deploy.verify.row_scoring import scored
from olmorl.verifiers.scorer import VerifierScorer
from tests.verifiers.builders import make_prompt


@pytest.fixture
async def scorer() -> AsyncIterator[VerifierScorer]:
    made = VerifierScorer(Verifiers(workers=1))
    await made.start()
    yield made
    await made.stop()


async def counted(scorer: VerifierScorer, dataset: str, label: str, *texts: str) -> list[int | None]:
    prompt = make_prompt((dataset,), (label,))
    results = await scored(scorer, prompt, [completion_of({"completion": text}) for text in texts])
    return await votes(scorer, prompt, [completion for completion, _ in results])


async def test_mathematics_is_equal_by_algebra_and_the_right_answer_is_0(scorer: VerifierScorer) -> None:
    given = (
        r"\boxed{\frac{1}{2}}",
        r"\boxed{0.5}",
        r"\boxed{1+x}",
        r"\boxed{x+1}",
        r"\boxed{7}",
        "I do not know.",
        r"\boxed{2^x}",
    )
    assert await counted(scorer, "math", "7", *given) == [1, 1, 2, 2, 0, None, 3]


async def test_a_right_answer_is_one_vote_in_all_its_forms(scorer: VerifierScorer) -> None:
    assert await counted(scorer, "gsm8k", "1200", "It is 1,200.", r"\boxed{1200.0}", "12") == [0, 0, 1]


async def test_letters_and_words_are_equal_as_text(scorer: VerifierScorer) -> None:
    assert await counted(scorer, "multiple_choice", "B", "The answer is (A).", "Answer: A", "Answer: B") == [1, 1, 0]
    assert await counted(scorer, "string_match", "Paris", "Rome", "rome", "Paris") == [1, 1, 0]


async def test_programs_have_no_votes(scorer: VerifierScorer) -> None:
    program = "```python\ndef f(): return 1\n```"
    assert await counted(scorer, "code", '["assert f() == 2"]', program, program) == [None, None]
