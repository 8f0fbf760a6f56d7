"""Sentences around a number: what they state, and what they take back, in every form that marks an answer."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from olmorl.verifiers.math.math_verifier import MathVerifier
from olmorl.verifiers.math.words import spelled
from olmorl.verifiers.pool.pool import Pool

on_module_loop = pytest.mark.asyncio(loop_scope="module")
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))
ENDINGS = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))["texts"]
FORMS = (
    r"\boxed{%s}",
    "The answer is %s.",
    "#### %s",
    "<answer>%s</answer>",
    "**Answer:** %s",
    "Some work first.\n\n%s",
)
NUMBERS = (("37", "52", "5"), ("8", "12", "3"), ("150", "90", "7"))


async def rewards(pool: Pool, rows: list[tuple[str, str]]) -> list[float | None]:
    verdicts = await asyncio.gather(*(MathVerifier(pool).verify(text, label) for text, label in rows))
    return [verdict.reward for verdict in verdicts]


def sentences(kind: str, form: str) -> list[tuple[str, str]]:
    return [
        (form % template.format(n=n, m=m, s=s), n)
        for template in TABLE[kind]
        for n, m, s in NUMBERS
        if not (form == FORMS[-1] and ("{m}" in template or "{s}" in template or "\\" in template))
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "reward"), [("states", 1.0), ("other", 0.0)])
@on_module_loop
async def test_a_sentence_states_its_number_or_does_not(math_pool: Pool, kind: str, reward: float, form: str) -> None:
    rows = sentences(kind, form)
    found = await rewards(math_pool, rows)
    assert [row for row, given in zip(rows, found, strict=True) if given != reward] == []


@pytest.mark.parametrize(("side", "reward"), [("equal", 1.0), ("different", 0.0)])
@on_module_loop
async def test_pairs(math_pool: Pool, side: str, reward: float) -> None:
    rows = [(rf"\boxed{{{answer}}}", pair["label"]) for pair in TABLE["pairs"] for answer in pair[side]]
    found = await rewards(math_pool, rows)
    assert [row for row, given in zip(rows, found, strict=True) if given != reward] == []


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        (r"\boxed{1}, \boxed{2}", "1,2", 1.0),
        (r"\boxed{1} and \boxed{2}", "{1,2}", 1.0),
        (r"\boxed{} \boxed{2}", "2", 1.0),
        (r"$\boxed{1}$ or $\boxed{2}$", "1,2", 1.0),
        (r"\boxed{1} \quad \text{and} \quad \boxed{2}", "1,2", 1.0),
        (r"\(\boxed{2}\); \(\boxed{1}\)", "1,2", 1.0),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1,2,3", 1.0),
        (r"\boxed{(1,2)}, \boxed{(3,4)}", "(1,2),(3,4)", 1.0),
        (r"\boxed{1} and \boxed{2}", "2", 0.0),
        (r"\boxed{1} and \boxed{2}", "1", 0.0),
        (r"\boxed{1} \boxed{2}", "2", 0.0),
        (r"\boxed{A}, \boxed{C}", "C", 0.0),
        (r"\boxed{A}, \boxed{C}", "A, C", 1.0),
        (r"\boxed{2} and \boxed{2}", "2", 1.0),
        (r"\boxed{1}\boxed{2}", "2", 1.0),
        (r"\boxed{1}\boxed{2}", "1,2", 0.0),
        (r"\boxed{1} is wrong, it is \boxed{2}", "2", 1.0),
        (r"\boxed{1}, \boxed{200}", "1, 200", 1.0),
        (r"\boxed{1}, \boxed{200}", "1200", 0.0),
        (r"\boxed{1,2}", r"\boxed{1} and \boxed{2}", 1.0),
        (r"\boxed{2}", r"\boxed{1} and \boxed{2}", 0.0),
    ],
)
@on_module_loop
async def test_boxes_in_a_row_are_one_list(math_pool: Pool, text: str, label: str, reward: float) -> None:
    assert await rewards(math_pool, [(text, label)]) == [reward]


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("the probability is .4", "0.4", 1.0),
        ("1 000", "1000", 1.0),
        ("12 500", "500", 0.0),
        ("12 500", "12500", 1.0),
        ("1000,99", "1000.99", 1.0),
        ("the number is not 10, it is 1,000.99€", "1000.99", 1.0),
        ("Soucis : 2,74 $ a..", "2.74", 1.0),
        ("1,2,3,4,5", "5", 0.0),
        ("The train runs at 20 km/h.", "20 m/s", 0.0),
        ("The solutions are $x=2$ and $x=3$.", "3", 0.0),
        ("The solutions are $x=2$ and $x=3$.", "2,3", 1.0),
        ("It is $2$ or $3$.", "3", 0.0),
        ("The answer is $2$ or $3$.", "2", 0.0),
        ("The answer is $2$ and $3$.", "2,3", 1.0),
        ("The answer is $5, not sure", "5", 0.0),
        ("The answer is $5 for each and $6 for all.", "6", 0.0),
        ("It is not true that the answer is 5.", "5", 0.0),
        ("I do not think the answer is 5", "5", 0.0),
        ("If the answer is 5 then", "5", 0.0),
        ("Since 3 is not even, the answer is 5.", "5", 1.0),
        ("The answer is approx. 5", "5", 1.0),
        ("The answer is 0.1666... .", "1/6", 1.0),
        ("They need **540** meters.", "540", 1.0),
        ("eight", "8", 1.0),
        ("There are eight apples.", "8", 1.0),
        ("Yes, it does.", "yes", 1.0),
        ("3:30 PM", "3:30 p.m.", 1.0),
        ("5000 J", "5 kJ", 1.0),
    ],
)
@on_module_loop
async def test_whole_completions(math_pool: Pool, text: str, label: str, reward: float) -> None:
    assert await rewards(math_pool, [(text, label)]) == [reward]


@pytest.mark.parametrize(("side", "reward"), [("paid", 1.0), ("unpaid", 0.0)])
@on_module_loop
async def test_endings(math_pool: Pool, side: str, reward: float) -> None:
    rows = [(row["text"], label) for row in ENDINGS for label in row.get(side, ())]
    assert len(rows) > len(ENDINGS) // 2
    found = await rewards(math_pool, rows)
    assert [row for row, given in zip(rows, found, strict=True) if given != reward] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("five", 5),
        ("twenty-one", 21),
        ("one hundred and five", 105),
        ("twelve hundred", 1200),
        ("two million three hundred thousand", 2_300_000),
        ("three quarters", 0.75),
        ("a dozen", 12),
        ("one two", None),
        ("ten twenty", None),
        ("apple", None),
    ],
)
def test_numbers_in_words(text: str, value: float | None) -> None:
    found = spelled(text)
    assert (found and float(found[0])) == value


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("So she makes ${n} every day.", 1.0), ("In total, it takes {n} bolts.", 1.0), ("{n} cups of feed.", 1.0),
        ("She crochets {n} squares.", 1.0), ("It's {n}.", 1.0), ("That makes {n} cookies in all.", 1.0),
        ("Thus the total is {n}.", 1.0), ("Therefore {n}.", 1.0), ("{n} are left.", 1.0), ("{n} is the answer.", 1.0),
        ("Total cost: ${n}", 1.0), ("He needs to buy {n} more.", 1.0), ("They drove {n} miles.", 1.0),
                        ("{n} does not work.", 0.0),
        ("The women knit {n} scarves.", 1.0), ("The chef will bake {n} pies.", 1.0),
        ("The pool drains in {n} minutes.", 1.0),
        ("Accordingly, {n} people voted.", 1.0),
                ("{n} was too small.", 0.0),
    ],
)  # fmt: skip
@on_module_loop
async def test_a_number_without_a_marker_counts_where_the_sentence_says_it(
    math_pool: Pool, text: str, reward: float
) -> None:
    assert await rewards(math_pool, [(text.format(n=n), n) for n in ("19", "364")]) == [reward, reward]
