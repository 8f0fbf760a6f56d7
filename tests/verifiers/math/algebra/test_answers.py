"""Families of answers, one for each cause that once made a reward wrong, through the whole verifier."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from olmorl.verifiers.math.math_verifier import MathVerifier
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.pool.pool import Pool

on_module_loop = pytest.mark.asyncio(loop_scope="module")
FAMILIES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("answers.toml").read_text("utf-8"))["family"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["cause"])
@on_module_loop
async def test_a_family_is_judged_right(math_pool: Pool, family: dict[str, Any]) -> None:
    rows = [
        (pair["label"], answer, reward)
        for pair in family["pairs"]
        for side, reward in (("equal", 1.0), ("different", 0.0))
        for answer in pair.get(side, ())
    ]
    rule = MathVerifier(math_pool)
    verdicts = await asyncio.gather(*(rule.verify(rf"\boxed{{{answer}}}", label) for label, answer, _ in rows))
    wrong = [
        (label, answer, verdict.reward, verdict.method, verdict.detail)
        for (label, answer, reward), verdict in zip(rows, verdicts, strict=True)
        if verdict.reward != reward
    ]
    assert wrong == []


@pytest.mark.parametrize("letter", "abcdfghklmnpqrstuvwxyzABCDEFGHKLMN")
@on_module_loop
async def test_no_letter_equals_its_absolute_value(math_pool: Pool, letter: str) -> None:
    rule = MathVerifier(math_pool)
    for label in (f"|{letter}|", rf"\sqrt{{{letter}^2}}", f"|{letter}|+1"):
        assert (await rule.verify(rf"\boxed{{{label.replace('|', '').replace('^2', '')}}}", label)).reward == 0.0


@on_module_loop
async def test_a_label_that_nothing_reads_is_right_as_text_or_a_bad_row(math_pool: Pool) -> None:
    rule = MathVerifier(math_pool)
    label = r"\operatorname{proj}_{\vec{w}}(\vec{v})=\langle 1,2\rangle"
    assert await rule.problem(label) is None
    assert (await rule.verify(rf"\boxed{{{label}}}", label)).reward == 1.0
    assert (await rule.verify(r"\boxed{\langle 1,2\rangle}", label)).reward == 0.0
    for broken in (r"\frac{1}{", r"\sqrt", "3 +", "We see that ((x. " * 40):
        assert "neither mathematics nor short text" in (await rule.problem(broken) or "")


@pytest.mark.parametrize(
    ("answer", "reward"), [("1, 2, 3", 1.0), ("3, 2, 1", 0.0), (r"\{3, 2, 1\}", 1.0), ("1, 2", 0.0)]
)
@on_module_loop
async def test_lists_are_ordered_where_the_policy_says_so(math_pool: Pool, answer: str, reward: float) -> None:
    rule = MathVerifier(math_pool, Policy(ordered=True))
    assert (await rule.verify(rf"\boxed{{{answer}}}", "1, 2, 3")).reward == reward
    assert (await MathVerifier(math_pool).verify(r"\boxed{3, 2, 1}", "1, 2, 3")).reward == 1.0
