"""Finds the sandbox tier that works on this machine, and tries the sample attacks in it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from olmorl.config import Verifiers
from olmorl.errors import Unscorable
from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.sandbox import tiers
from olmorl.verifiers.code.sandbox.messages import RunReport
from olmorl.verifiers.code.sandbox.sample_attacks import ATTACKS, Attack
from olmorl.verifiers.code.sandbox.sandbox import PROBE, Sandbox

_QUICK = {"code_test_timeout_s": 0.5, "memory_mib": 256}


class AttackFinding(NamedTuple):
    """The outcome of one attack."""

    attack: str
    stopped: bool
    met: str
    """One line: the error, the limit, or the result of a successful attack."""


class SelfTest(NamedTuple):
    """The outcome of all attacks on one machine."""

    tier: str
    """`bubblewrap`, `landlock` or `unsafe`; empty when no tier works and programs cannot run."""
    refused: dict[str, str]
    """For each better tier, the reason why it does not work here."""
    findings: tuple[AttackFinding, ...]
    alive: bool
    """Whether a good program still passes after all attacks."""

    @property
    def safe(self) -> bool:
        """Whether every attack was stopped."""
        return self.alive and all(finding.stopped for finding in self.findings)


async def run(settings: Verifiers) -> SelfTest:
    """Try every attack in each tier, best first, and return the first tier that stops all attacks.

    If no tier stops all of them, the result is for the last tier in which programs run.
    """
    refused: dict[str, str] = {}
    last = SelfTest("", refused, (), False)
    for name in tiers.names(settings):
        found = await _in_tier(name, settings)
        if found.safe:
            return found._replace(refused=refused)
        refused |= found.refused
        if found.tier:
            last = found._replace(refused=refused)
            through = ", ".join(finding.attack for finding in found.findings if not finding.stopped)
            refused[name] = f"it lets attacks through: {through}" if through else "no program runs after the attacks"
    return last


async def _in_tier(name: str, settings: Verifiers) -> SelfTest:
    sandbox = Sandbox(settings.model_copy(update={**_QUICK, "code_tier": name}), vet=False)
    try:
        alive = await sandbox.run(PROBE)
        if not _passed(alive):
            return SelfTest("", {name: sandbox.refused.get(name, _line(alive))}, (), False)
        findings = await asyncio.gather(*(_try(sandbox, attack) for attack in ATTACKS))
        return SelfTest(name, {}, tuple(findings), _passed(await sandbox.run(PROBE)))
    finally:
        await sandbox.close()


async def describe(settings: Verifiers) -> str:
    """One sentence: the tier of this machine and how many attacks it stopped, or why no program can run.

    Raises:
        Unscorable: programs would run, and attacks would succeed.
    """
    found = await run(settings)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in found.refused.items())
    if not found.tier:
        return f"rows with code would fail here, because no program runs: {reasons}"
    if settings.code_tier == "unsafe":
        return "programs run without a sandbox, as verifiers.code_tier = unsafe says"
    if not found.safe:
        raise Unscorable(
            "self_test", f"the sandbox does not stop all attacks on this host ({reasons}); see verifiers.code_tier"
        )
    rest = f" (not in {reasons})" if reasons else ""
    return f"programs run in the sandbox {found.tier}, which stopped {len(found.findings)} attacks{rest}"


async def refusal(settings: Verifiers) -> str:
    """The reason why a good program cannot run here; empty if it can."""
    sandbox = Sandbox(settings)
    try:
        outcome = await sandbox.run(PROBE)
        return "" if _passed(outcome) else _line(outcome)
    finally:
        await sandbox.close()


async def _try(sandbox: Sandbox, attack: Attack) -> AttackFinding:
    if attack.breaks_out and sandbox.tier == "unsafe":
        return AttackFinding(attack.kind, False, "not tried, because the tier unsafe stops nothing")
    outcome = await sandbox.run(attack.job)
    return AttackFinding(attack.kind, attack.stopped_by(outcome), _line(outcome))


def _passed(outcome: RunReport | Limit | Failed) -> bool:
    return isinstance(outcome, RunReport) and outcome.outcome == "passed"


def _line(outcome: RunReport | Limit | Failed) -> str:
    if isinstance(outcome, Limit):
        return f"{outcome.kind} limit"
    return outcome.detail or (outcome.outcome if isinstance(outcome, RunReport) else outcome.error_kind)
