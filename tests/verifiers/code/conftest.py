"""Sandboxes of every tier that this machine can have."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
import pytest_asyncio

from olmorl.config import Verifiers
from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import Sandbox

TIERS = [
    pytest.param(
        "bubblewrap",
        marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="the package bubblewrap is not installed"),
    ),
    "landlock",
]
SETTINGS = Verifiers(workers=2, code_test_timeout_s=3.0, memory_mib=512)

Run = Callable[[ProgramTest], Coroutine[None, None, RunReport | Limit | Failed]]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """One in each tier."""
    made = Sandbox(SETTINGS.model_copy(update={"code_tier": request.param}))
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def any_sandbox() -> AsyncIterator[Sandbox]:
    """In the best tier there is: for what does not depend on it."""
    made = Sandbox(SETTINGS)
    yield made
    await made.close()
