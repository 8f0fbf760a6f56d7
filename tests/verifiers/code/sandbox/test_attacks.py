"""Programs that cheat or break out get no reward, lose no group, and leave the sandbox whole, in each tier.

Each file in `attacks` is a program, and tests that it would pass if it were not stopped, each after a line `=== test`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.sandbox import self_test
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import PROBE, Sandbox
from tests.verifiers.code.conftest import SETTINGS, TIERS

FOLDER = Path(__file__).parent / "attacks"
ATTACKS = {
    f"{path.stem}: {test}": ProgramTest(program, test=test)
    for path in sorted(FOLDER.glob("*.txt"))
    for program, *tests in [path.read_text(encoding="utf-8").split("=== test\n")]
    for test in tests
}
QUICK = SETTINGS.model_copy(update={"workers": 3, "code_test_timeout_s": 0.25, "memory_mib": 256})


@pytest.mark.parametrize("tier", TIERS)
async def test_no_attack_is_rewarded_and_none_deletes_its_group(tier: str) -> None:
    sandbox = Sandbox(QUICK.model_copy(update={"code_tier": tier}))
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        outcomes = dict(zip(ATTACKS, await asyncio.gather(*map(sandbox.run, ATTACKS.values())), strict=True))
        assert len(outcomes) > 250
        assert {name: outcome for name, outcome in outcomes.items() if not stopped(outcome)} == {}
        assert await sandbox.run(PROBE) == RunReport("passed")
        assert sandbox.counters.starts == QUICK.workers
    finally:
        await sandbox.close()


def stopped(outcome: RunReport | Limit | Failed) -> bool:
    return isinstance(outcome, Limit) or (isinstance(outcome, RunReport) and outcome.outcome == "failed")


@pytest.mark.parametrize("tier", TIERS)
async def test_the_self_test_names_the_tier_and_finds_it_safe(tier: str) -> None:
    found = await self_test.run(QUICK.model_copy(update={"code_tier": tier}))
    assert found.tier == tier
    assert [finding for finding in found.findings if not finding.stopped] == []
    assert found.safe
