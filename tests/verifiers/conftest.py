"""Fixtures for tests of verifiers: prompts, completions, pools and settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt
from olmorl.verifiers.math.math_verifier import WARM
from olmorl.verifiers.pool.pool import Pool
from tests.verifiers import builders


@pytest.fixture
def make_prompt() -> Callable[..., Prompt]:
    """The function of that name in `builders`."""
    return builders.make_prompt


@pytest.fixture
def make_completion() -> Callable[..., Completion]:
    """The function of that name in `builders`."""
    return builders.make_completion


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
    return Verifiers(timeout_s=20.0, function_timeout_s=20.0)
