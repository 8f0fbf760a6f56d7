"""What honest programs and ordinary tests do works across two processes as it would in one.

Each file in `honest` is a program and tests of it, between lines `=== test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOLDER = Path(__file__).parent / "honest"
PROGRAMS = {path.stem: path.read_text(encoding="utf-8").split("=== test\n") for path in sorted(FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_honest_programs_pass(any_sandbox: Sandbox, name: str) -> None:
    program, *tests = PROGRAMS[name]
    assert tests
    for test in tests:
        assert await any_sandbox.run(ProgramTest(program, test=test)) == RunReport("passed"), test
