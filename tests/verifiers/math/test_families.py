"""Completions by family, and what a question tells about its label."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from olmorl.messages import Prompt
from olmorl.verifiers.math.math_verifier import MathVerifier
from olmorl.verifiers.math.question import UNKNOWN, asked
from olmorl.verifiers.pool.pool import Pool
from tests.verifiers.builders import make_completion, make_prompt

on_module_loop = pytest.mark.asyncio(loop_scope="module")
HERE = Path(__file__)


def table(name: str) -> list[dict[str, Any]]:
    """The entries of a TOML file beside this one."""
    (entries,) = tomllib.loads(HERE.with_name(f"{name}.toml").read_text(encoding="utf-8")).values()
    return list(entries)


FAMILIES = {family["name"]: family for family in table("families")}


@pytest.mark.parametrize("name", FAMILIES)
@on_module_loop
async def test_families(math_pool: Pool, name: str) -> None:
    rows = [(*pair, reward) for key, reward in (("paid", 1.0), ("unpaid", 0.0)) for pair in FAMILIES[name].get(key, ())]
    rule = MathVerifier(math_pool)
    verdicts = await asyncio.gather(*(rule.verify(text, label) for label, text, _ in rows))
    assert rows
    assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict.reward != row[2]] == []


def with_question(question: str, label: str) -> Prompt:
    return make_prompt(("math",), (label,), messages=[{"role": "user", "content": question}])


@pytest.mark.parametrize("entry", table("questions"), ids=lambda entry: entry["label"])
@on_module_loop
async def test_what_a_question_tells(math_pool: Pool, entry: dict[str, Any]) -> None:
    rule, prompt = MathVerifier(math_pool), with_question(entry["question"], entry["label"])
    texts = [(text, reward) for key, reward in (("paid", 1.0), ("unpaid", 0.0)) for text in entry[key]]
    verdicts = [await rule.verify_row(prompt, make_completion(text), text, entry["label"]) for text, _ in texts]
    assert [one for one, verdict in zip(texts, verdicts, strict=True) if verdict.reward != one[1]] == []


def test_a_prompt_without_a_text_tells_nothing() -> None:
    for messages in ([], [{"role": "user", "content": None}], [{"role": "user", "content": [{"type": "image"}]}]):
        assert asked(make_prompt(("math",), ("1",), messages=messages)) == UNKNOWN
    assert asked(make_prompt(("math",), ("1",), messages="How many km?")).is_count
