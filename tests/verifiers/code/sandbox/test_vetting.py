"""A tier is tried with attacks before its first use, and one that lets an attack through is not used."""

from __future__ import annotations

import pytest

from olmorl.config import Verifiers
from olmorl.errors import Unscorable
from olmorl.verifiers.check_outcomes import Failed
from olmorl.verifiers.code.sandbox import sandbox as sandboxes
from olmorl.verifiers.code.sandbox import self_test
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sample_attacks import ATTACKS, Attack
from olmorl.verifiers.code.sandbox.sandbox import PROBE, Sandbox
from tests.verifiers.code.conftest import TIERS

SETTINGS = Verifiers(workers=1, code_test_timeout_s=1.0, memory_mib=256)
WRITES = Attack("a file", ProgramTest("def f(): open('/tmp/f', 'w').close()", test="assert f() is None"))
"""Stopped by Landlock, not by bubblewrap, which gives each test a folder of its own."""


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "_VETTED", {})


@pytest.mark.parametrize("tier", TIERS)
async def test_each_tier_is_tried_once_in_a_process(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    original = Attack.stopped_by

    def stopped_by(self: Attack, outcome: RunReport | None) -> bool:
        tried.append(self.kind)
        return original(self, outcome)

    monkeypatch.setattr(Attack, "stopped_by", stopped_by)
    for _ in range(2):
        sandbox = Sandbox(SETTINGS.model_copy(update={"code_tier": tier}))
        try:
            assert await sandbox.run(PROBE) == RunReport("passed")
        finally:
            await sandbox.close()
    assert tried == [attack.kind for attack in ATTACKS if not attack.slow]


@pytest.mark.skipif(len(TIERS) < 2 or bool(TIERS[0].marks[0].args[0]), reason="needs both tiers")
async def test_a_tier_that_lets_an_attack_through_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "ATTACKS", (WRITES,))
    sandbox = Sandbox(SETTINGS)
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        assert sandbox.tier == "landlock"
        assert sandbox.refused == {"bubblewrap": "it lets attacks through: a file"}
    finally:
        await sandbox.close()


async def test_where_every_tier_lets_an_attack_through_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "ATTACKS", (Attack("an open door", PROBE),))
    sandbox = Sandbox(SETTINGS)
    try:
        outcome = await sandbox.run(PROBE)
        assert isinstance(outcome, Failed) and outcome.error_kind == "no_sandbox"
        assert "lets attacks through: an open door" in outcome.detail
    finally:
        await sandbox.close()


async def test_preflight_refuses_a_host_where_an_attack_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "ATTACKS", (Attack("an open door", PROBE),))
    found = await self_test.run(SETTINGS)
    assert not found.safe and found.tier and "an open door" in found.refused[found.tier]
    with pytest.raises(Unscorable, match="an open door"):
        await self_test.describe(SETTINGS)


async def test_preflight_says_which_sandbox_stopped_how_many_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = tuple(attack for attack in ATTACKS if not attack.slow)
    monkeypatch.setattr(self_test, "ATTACKS", quick)
    said = await self_test.describe(SETTINGS)
    assert f"stopped {len(quick)} attacks" in said
    monkeypatch.setenv("PATH", "/nowhere")
    said = await self_test.describe(SETTINGS.model_copy(update={"code_tier": "bubblewrap"}))
    assert "no program runs" in said and "install the package bubblewrap" in said
