"""The functions of `docs/data.md` score both forms of a row, and log and leave out what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl import config
from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt, Span, Verdict, Version
from olmorl.verifiers.functions.function_scorer import FunctionScorer

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
ANSWERS = ("short\n- one", "x" * 300, "42\n- a\n- b\n- c")
TURNS = [{"role": "user", "content": "How much?"}]


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.mark.parametrize("messages", ["How much?", TURNS])
async def test_every_function_scores_both_forms(
    messages: Any,
    reward_file: Callable[[str], str],
    quick: Verifiers,
    make_prompt: Callable[..., Prompt],
    make_completion: Callable[..., Completion],
) -> None:
    source = "\n".join(blocks("python"))
    file = reward_file(source)
    names = re.findall(r"^(?:async )?def (\w+)", source, re.MULTILINE)
    group = [
        replace(
            make_completion(text, index),
            token_ids=np.arange(len(text), dtype=np.int32),
            spans=(Span(Version(1, 5), 0, 1),),
        )
        for index, text in enumerate(ANSWERS)
    ]
    scorer = FunctionScorer(quick.model_copy(update={"functions": [f"{file}:{name}" for name in names]}), max_steps=10)
    await scorer.start()
    try:
        rows: list[dict[str, Verdict]] = await scorer.score(make_prompt(("math",), ("42",), messages=messages), group)
    finally:
        await scorer.stop()
    assert not [verdict.detail for row in rows for verdict in row.values() if verdict.error_kind]
    found = {name: [row[name].reward for row in rows] for name in names}
    assert found["brief"] == [1.0, 0.0, 1.0]
    assert found["compute_score"] == [0.0, 0.0, 1.0]
    assert found["warming_up"] == pytest.approx([1 - 0.5 * np.tanh(len(text) / 1000) for text in ANSWERS])
    assert rows[0]["warming_up"].logged == {"length": pytest.approx(sum(map(len, ANSWERS)) / 3)}
    assert [row["warming_up"].extra for row in rows] == [{"length": len(text)} for text in ANSWERS]


def test_every_recipe_is_one(tmp_path: Path) -> None:
    found = []
    for number, block in enumerate(blocks("toml")):
        recipe = tmp_path / f"{number}.toml"
        recipe.write_text(block, encoding="utf-8")
        found.append(config.load(recipe))
    assert [each.data.chat_template_kwargs for each in found if each.data.chat_template_kwargs] == [
        {"enable_thinking": False}
    ]
    assert [each.verifiers.functions for each in found if each.verifiers.functions] == [
        ["rewards.py:brief*0.1", "my.package:graded"]
    ]
