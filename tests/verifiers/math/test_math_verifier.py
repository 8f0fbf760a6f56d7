"""Math answers against labels, as `math_answers.toml` has them, and the policies where people differ."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.verifiers.math.math_verifier import MathVerifier
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.question import UNKNOWN
from olmorl.verifiers.math.reading import read, read_label, settle
from olmorl.verifiers.pool.pool import Pool

on_module_loop = pytest.mark.asyncio(loop_scope="module")
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("math_answers.toml").read_text(encoding="utf-8"))


def checks(kind: str) -> list[tuple[str, str, float]]:
    """Label, answer, and the reward that it must have."""
    return [
        (pair["label"], answer, reward)
        for pair in TABLE["pairs"]
        if pair["kind"] == kind
        for column, reward in (("equal", 1.0), ("different", 0.0))
        for answer in pair.get(column, ())
    ]


KINDS = sorted({pair["kind"] for pair in TABLE["pairs"]})


@pytest.mark.parametrize("kind", KINDS)
@on_module_loop
async def test_equal_and_different_answers(math_pool: Pool, kind: str) -> None:
    rule = MathVerifier(math_pool)
    rows = checks(kind)
    verdicts = await asyncio.gather(*(rule.verify(rf"\boxed{{{answer}}}", label) for label, answer, _ in rows))
    wrong = [
        (label, answer, verdict.reward, verdict.method, verdict.error_kind)
        for (label, answer, reward), verdict in zip(rows, verdicts, strict=True)
        if verdict.reward != reward or verdict.error_kind is not None
    ]
    assert wrong == []


@on_module_loop
async def test_every_label_of_the_table_can_be_used(math_pool: Pool) -> None:
    labels = sorted({pair["label"] for pair in TABLE["pairs"]})
    problems = await asyncio.gather(*map(MathVerifier(math_pool).problem, labels))
    assert [problem for problem in problems if problem is not None] == []


def test_the_table_is_large_and_has_both_sides_of_every_kind() -> None:
    sides = Counter((kind, reward) for kind in KINDS for _, _, reward in checks(kind))
    assert sum(sides.values()) >= 3000
    assert all(sides[kind, reward] for kind in KINDS if kind != "remarks" for reward in (0.0, 1.0))


@on_module_loop
async def test_answers_within_completions(math_pool: Pool) -> None:
    rule = MathVerifier(math_pool)
    rows = TABLE["completions"]
    verdicts = await asyncio.gather(*(rule.verify(row["text"], row["label"]) for row in rows))
    assert [row["text"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.reward != row["reward"]] == []


@on_module_loop
async def test_the_verdict_says_what_was_read_and_how(math_pool: Pool) -> None:
    rule = MathVerifier(math_pool)
    verdict = await rule.verify("The answer is 41.", "42")
    assert (verdict.reward, verdict.extracted, verdict.method) == (0.0, "41", "number")
    verdict = await rule.verify(r"\boxed{6\sqrt{49}}", "42")
    assert (verdict.extracted, verdict.method) == (r"6\sqrt{49}", "algebra")
    assert (await rule.verify("no idea", "42")).method == "no_answer"


@pytest.mark.parametrize(
    ("policy", "label", "answer", "reward"),
    [
        (Policy(strict_percent=True), "50", r"50\%", 0.0),
        (Policy(strict_percent=True), "0.5", r"50\%", 1.0),
        (Policy(strict_percent=True), r"\frac{\sqrt2}{100}", r"\sqrt2\%", 1.0),
        (Policy(), "5 cm", "5", 1.0),
        (Policy(), "5 cm", "5 m", 0.0),
        (Policy(), r"5\sqrt2\text{ cm}", r"5\sqrt2\text{ m}", 0.0),
        (Policy(units="strict"), "5 cm", "5", 0.0),
        (Policy(units="strict"), "5 cm", "0.05 m", 1.0),
        (Policy(units="strict"), r"\sqrt2\text{ cm}", r"\sqrt2", 0.0),
        (Policy(units="strict"), "5", "5 cm", 1.0),
        (Policy(), "East", "EAST", 1.0),
        (Policy(exact_case=True), "East", "EAST", 0.0),
        (Policy(exact_case=True), "East", r"\text{East}", 1.0),
        (Policy(), "3.14", "3.15", 0.0),
        (Policy(tolerance=0.01), "3.14", r"\pi", 1.0),
        (Policy(tolerance=0.01), r"\sqrt2", "1.41", 1.0),
        (Policy(tolerance=0.01), r"\frac{1}{3}", r"\frac{1}{4}", 0.0),
        (Policy(tolerance=0), r"\sqrt2", "1.4142135", 0.0),
    ],
)
@on_module_loop
async def test_policies(math_pool: Pool, policy: Policy, label: str, answer: str, reward: float) -> None:
    assert (await MathVerifier(math_pool, policy).verify(rf"\boxed{{{answer}}}", label)).reward == reward


@on_module_loop
async def test_the_last_number_is_an_answer_only_if_wanted(math_pool: Pool) -> None:
    assert (await MathVerifier(math_pool).verify("it is 5", "5")).reward == 1.0
    assert (await MathVerifier(math_pool, last_number=False).verify("it is 5", "5")).reward == 0.0


@pytest.mark.parametrize(
    ("label", "usable"),
    [
        ("42", True),
        (42, True),
        (0.5, True),
        ("So 6 * 7 = 42\n#### 42", True),
        (r"x^2+1", True),
        (r"\boxed{\sqrt2}", True),
        ("no solution", True),
        ("", False),
        ("  ", False),
        (r"\frac{1}{", False),
        (r"\sqrt", False),
        ("3 4", True),
        ("3 +", False),
        (None, False),
        (["1"], False),
        (True, False),
        (float("nan"), False),
        ("9" * 3000, False),
        ("9" * 5000, False),
    ],
)
@on_module_loop
async def test_labels(math_pool: Pool, label: object, usable: bool) -> None:
    assert (await MathVerifier(math_pool).problem(label) is None) == usable


@on_module_loop
async def test_a_label_that_cannot_be_read_is_an_error_and_not_a_zero(math_pool: Pool) -> None:
    verdict = await MathVerifier(math_pool).verify(r"\boxed{x+1}", r"\frac{1}{")
    assert (verdict.reward, verdict.error_kind) == (None, "label")


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="0123456789.,-+/*^_{}()[]\\ xaeE%$:;=<>frctqs", max_size=40))
def test_every_answer_is_read_and_equals_itself_or_is_blank(text: str) -> None:
    assert settle(read_label(text), read(text), Policy(), UNKNOWN) in ((True, "identical"), (False, "blank"))


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_an_integer_equals_its_spellings_and_not_its_neighbour(number: int) -> None:
    for spelling in (
        f"{number:,}",
        f"{number}.0",
        f"\\text{{{number}}}",
        f"{2 * number}/2",
        f"{number:,}".replace(",", r"\,"),
    ):
        assert settle(read_label(str(number)), read(spelling), Policy(), UNKNOWN) in (
            (True, "number"),
            (True, "identical"),
        )
    assert settle(read_label(str(number)), read(str(number + 1)), Policy(), UNKNOWN) == (False, "number")


def test_the_fast_path_takes_microseconds() -> None:
    answers = ["42", "1,042", r"\frac{84}{2}", "42 apples", r"\text{east}", "(A)"]
    started = time.process_time()
    for _ in range(500):
        for answer in answers:
            settle(read_label("42"), read(answer), Policy(), UNKNOWN)
    assert (time.process_time() - started) / 3000 < 500e-6
