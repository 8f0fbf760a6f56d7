"""Prompts and completions to verify, and the pools to verify them with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt, Span, Version
from olmorl.verifiers.math import WARM
from olmorl.verifiers.pool import Pool

START = Version(0, 0)


@pytest.fixture
def make_prompt() -> Callable[..., Prompt]:
    """A prompt with one label for each verifier named."""

    def make(datasets: tuple[str, ...] = (), truths: tuple[Any, ...] = (), **changes: Any) -> Prompt:
        fields: dict[str, Any] = {"messages": "How much?", **changes}
        return Prompt(
            draw_id=7,
            row="rows.jsonl:7",
            token_ids=np.zeros(1, np.int32),
            datasets=datasets,
            ground_truths=truths,
            group_size=2,
            min_version=START,
            **fields,
        )

    return make


@pytest.fixture
def make_completion() -> Callable[..., Completion]:
    def make(text: str, index: int = 0, **changes: Any) -> Completion:
        return Completion(
            index=index,
            token_ids=np.zeros(1, np.int32),
            logprobs=np.zeros(1, np.float32),
            spans=(Span(START, 0, 1),),
            finish_reason="stop",
            text=text,
            **changes,
        )

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def math_pool() -> AsyncIterator[Pool]:
    pool = Pool(2, timeout_s=20.0, preload=(WARM,))
    await pool.start()
    yield pool
    await pool.stop()


@pytest.fixture
def reward_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a module of reward functions and return its path."""

    def write(source: str) -> str:
        path = tmp_path / "rewards.py"
        path.write_text(source, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def quick() -> Verifiers:
    return Verifiers(timeout_s=20.0, function_timeout_s=20.0, retries=0)
