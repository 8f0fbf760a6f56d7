"""The instruction-following verifier over a pool: rewards, limits, labels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from olmorl.config import Verifiers
from olmorl.verifiers.instructions.constraint_table import CONSTRAINTS
from olmorl.verifiers.instructions.instruction_verifier import MAX_ANSWER, WARM, InstructionVerifier, satisfied
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.registry import all_verifiers

on_module_loop = pytest.mark.asyncio(loop_scope="module")

LABEL = {
    "instruction_id": ["punctuation:no_comma", "length_constraints:number_words", "startend:quotation"],
    "kwargs": [None, {"num_words": 3, "relation": "less than"}, {}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    pool = Pool(1, timeout_s=20.0, preload=(WARM,))
    await pool.start()
    yield pool
    await pool.stop()


@on_module_loop
async def test_all_constraints_or_their_share(pool: Pool) -> None:
    strict, lenient = InstructionVerifier(pool), InstructionVerifier(pool, fraction=True)
    assert (await strict.verify('"Two words"', LABEL)).reward == 1.0
    assert (await lenient.verify('"Two words"', LABEL)).reward == 1.0
    missed = await strict.verify("More than two words", LABEL)
    assert missed.reward == 0.0
    assert missed.detail == "not satisfied: length_constraints:number_words, startend:quotation"
    assert (await lenient.verify("More than two words", LABEL)).reward == pytest.approx(1 / 3)


@on_module_loop
async def test_one_job_an_answer(pool: Pool) -> None:
    before = pool.counters.checks
    await InstructionVerifier(pool).verify("Words", LABEL)
    assert pool.counters.checks == before + 1


@on_module_loop
@pytest.mark.parametrize("answer", ["...", " \n", "***", '"', "42"])
async def test_an_answer_without_words_satisfies_nothing(pool: Pool, answer: str) -> None:
    label = {
        "instruction_id": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": LABEL["kwargs"][:2],
    }
    assert (await InstructionVerifier(pool, fraction=True).verify(answer, label)).reward == 0.0


@on_module_loop
async def test_an_answer_past_the_limit_scores_0(pool: Pool) -> None:
    verdict = await InstructionVerifier(pool).verify("a" * (MAX_ANSWER + 1), LABEL)
    assert (verdict.reward, verdict.method, verdict.error_kind) == (0.0, "limit", None)


@on_module_loop
async def test_a_broken_label_is_no_reward(pool: Pool) -> None:
    rule = InstructionVerifier(pool)
    label = {"instruction_id": ["keywords:existence"], "kwargs": [{}]}
    verdict = await rule.verify("Words", label)
    assert (verdict.reward, verdict.error_kind) == (None, "label")
    assert not rule.usable(label)
    assert await rule.problem(label) == "keywords:existence needs keywords"
    assert rule.usable(LABEL)
    assert await rule.problem(LABEL) is None


@on_module_loop
@pytest.mark.parametrize("name", ["ifeval", "ifeval_old", "ifbench", "instruction_following"])
async def test_the_verifier_has_the_names_of_data_sets(pool: Pool, name: str) -> None:
    rule: Any = all_verifiers(Verifiers(ifeval_reward="fraction"), pool)[name]
    assert (await rule.verify("Two words", LABEL)).reward == pytest.approx(2 / 3)


def test_white_space_around_an_answer_does_not_count() -> None:
    assert satisfied(('\n\n "quoted" \n', [("validate_quotation", {})])) == [True]


def test_the_same_answer_always_gets_the_same_verdict() -> None:
    mixed = "MIXED WORTE UND WORDS: LA CASA ES THE HAUS"
    asked = [("change_case:english_capital", {}), ("language:response_language", {"language": "de"})]
    assert len({tuple(satisfied((mixed, asked))) for _ in range(5)}) == 1


def test_digits_alone_satisfy_what_asks_for_digits() -> None:
    numbers = "14, 21, 28, 35, 42, 49"
    assert satisfied((numbers, [("custom:multiples", {}), ("startend:end_checker", {"end_phrase": "49"})])) == [
        True,
        False,
    ]


def test_no_id_is_in_two_tables() -> None:
    assert len(CONSTRAINTS) == 25 + 29 + 58 + 25
