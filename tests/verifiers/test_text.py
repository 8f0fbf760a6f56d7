"""The small verifiers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from olmorl.verifiers.pool import Pool
from olmorl.verifiers.rule import Rule
from olmorl.verifiers.text import AnswerFormat, MultipleChoice, RegexMatch, StringMatch, TokenF1


@pytest.mark.parametrize(
    ("rule", "text", "label", "reward"),
    [
        (StringMatch, "Paris", "paris", 1.0),
        (StringMatch, "The answer is Paris.", "Paris", 1.0),
        (StringMatch, r"\boxed{New  York}", "New York", 1.0),
        (StringMatch, "Paris or Rome", "Paris", 0.0),
        (TokenF1, "The answer is a big red cat.", "the red cat", 2 * 2 / 5),
        (TokenF1, "dog", "cat", 0.0),
        (TokenF1, "...", "cat", 0.0),
        (MultipleChoice, "The answer is (C)", "C", 1.0),
        (MultipleChoice, r"\boxed{B}", "(b)", 1.0),
        (MultipleChoice, "B", "B", 1.0),
        (MultipleChoice, "A cat", "A", 0.0),
        (MultipleChoice, "The answer is (C)", "B", 0.0),
        (AnswerFormat, "<answer>5</answer>\n", "", 1.0),
        (AnswerFormat, "<answer> </answer>", "", 0.0),
        (AnswerFormat, "so <answer>5</answer>", "", 0.0),
        (AnswerFormat, "<answer>5</answer><answer>6</answer>", "", 0.0),
        (AnswerFormat, "5", "", 0.0),
        (AnswerFormat, "<answer>" + "x" * 1_000_000, "", 0.0),
    ],
)
async def test_rewards(rule: Callable[[], Rule], text: str, label: str, reward: float) -> None:
    started = time.process_time()
    assert (await rule().verify(text, label)).reward == pytest.approx(reward)
    assert time.process_time() - started < 1.0


async def test_a_regular_expression_runs_where_it_can_be_killed() -> None:
    pool = Pool(1, timeout_s=1.0)
    await pool.start()
    try:
        rule = RegexMatch(pool)
        assert (await rule.verify("baa", "a+$")).reward == 1.0
        assert (await rule.verify("bab", "a+$")).reward == 0.0
        verdict = await rule.verify("a" * 40 + "b", "(a+)+$")
        assert (verdict.reward, verdict.method) == (0.0, "limit")
    finally:
        await pool.stop()
