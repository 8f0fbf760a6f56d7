"""Every verifier by name, and how they end together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from olmorl.config import Judge, RewardModel, Verifiers
from olmorl.learner.data.readers import UNLABELLED, layout
from olmorl.verifiers.registry import ELSEWHERE, NAMES, unknown
from olmorl.verifiers.scorer import VerifierScorer


async def test_verifiers_that_read_no_label_are_those_whose_rows_need_none() -> None:
    remote = RewardModel(url="http://127.0.0.1:1/v1", model="m")
    scorer = VerifierScorer(Verifiers(judge=Judge(url="local"), reward_model=remote))
    await scorer.start()
    try:
        for nothing in (None, "", []):
            content = {name for name in NAMES if await scorer.problem(name, nothing) is None}
            assert content == UNLABELLED
    finally:
        await scorer.stop()


def test_a_name_that_no_verifier_has_is_answered_with_a_near_one() -> None:
    assert "did you mean 'math'" in unknown("maths")
    assert len(set(NAMES)) == len(NAMES)


def test_rows_of_open_instruct_without_a_verifier_here_are_named_with_the_reason() -> None:
    for name in ELSEWHERE:
        assert name not in NAMES
        assert f"no verifier here is named {name!r}" in unknown(name) and "verifiers.functions" in unknown(name)
    row = {"prompt": "2+2?", "dataset": ["passthrough"], "ground_truth": ["x"]}
    assert layout(row, None, optional=False).datasets == ("passthrough",)
    with_functions = layout(row, None, optional=True)
    assert (with_functions.datasets, with_functions.columns["ground_truth"]) == ((), ["x"])


async def test_rules_that_share_a_local_judge_end_together(
    make_prompt: Callable[..., Any], make_completion: Callable[..., Any]
) -> None:
    scorer = VerifierScorer(Verifiers(judge=Judge(url="local")))
    await scorer.start()
    try:
        prompt = make_prompt(("general-quality_ref", "general-quality"), ("Seven cats", None))
        verdicts = await scorer.verify(prompt, make_completion("Seven cats"))
    finally:
        await scorer.stop()
    assert verdicts["general-quality_ref"].reward == 1.0
    assert verdicts["general-quality"].error_kind is None
    await scorer.stop()
