"""What locks programs in on this machine, and what a sample of attacks meets there."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from olmorl.config import Verifiers
from olmorl.verifiers.checks import Failed, Limit
from olmorl.verifiers.code.attacks import ATTACKS, Attack
from olmorl.verifiers.code.outcome import Job, Report
from olmorl.verifiers.code.sandbox import PROBE, Sandbox

_QUICK = {"code_test_timeout_s": 0.5, "code_memory_mib": 256}


class Finding(NamedTuple):
    """What one class of attack met."""

    attack: str
    stopped: bool
    met: str
    """One line: the error, the limit, or what it got away with."""


class SelfTest(NamedTuple):
    """Of one machine."""

    tier: str
    """`bubblewrap`, `landlock` or `unsafe`; empty when there is none, and programs cannot be run."""
    refused: dict[str, str]
    """Better tiers, and why they do not work here."""
    findings: tuple[Finding, ...]
    alive: bool
    """A good program still passes after all attacks."""

    @property
    def safe(self) -> bool:
        """Whether every attack was stopped."""
        return self.alive and all(finding.stopped for finding in self.findings)


async def run(settings: Verifiers) -> SelfTest:
    """Try every attack in the tier that a run with these settings would use."""
    sandbox = Sandbox(settings.model_copy(update=_QUICK))
    try:
        alive = await sandbox.run(PROBE)
        if not _passed(alive):
            return SelfTest("", {**sandbox.refused, "": _line(alive)}, (), False)
        findings = await asyncio.gather(*(_try(sandbox, attack) for attack in ATTACKS))
        return SelfTest(sandbox.tier, dict(sandbox.refused), tuple(findings), _passed(await sandbox.run(PROBE)))
    finally:
        await sandbox.close()


async def describe(settings: Verifiers) -> str:
    """What runs programs on this machine, in words, or why none can be run."""
    sandbox = Sandbox(settings)
    try:
        outcome = await sandbox.run(PROBE)
    finally:
        await sandbox.close()
    if _passed(outcome):
        return f"programs run in the sandbox {sandbox.tier}"
    return f"rows with code would fail here, no program runs: {_line(outcome)}"


async def _try(sandbox: Sandbox, attack: Attack) -> Finding:
    if attack.breaks_out and sandbox.tier == "unsafe":
        return Finding(attack.kind, False, "not tried: nothing would stop it here")
    outcome = await sandbox.run(attack.job)
    return Finding(attack.kind, _stopped(attack.job, outcome), _line(outcome))


def _passed(outcome: Report | Limit | Failed) -> bool:
    return isinstance(outcome, Report) and outcome.outcome == "passed"


def _stopped(job: Job, outcome: Report | Limit | Failed) -> bool:
    """A failure of the sandbox is no way to stop an attack: it would let an answer delete its group."""
    escaped = isinstance(outcome, Failed) or _passed(outcome)
    return not escaped and not (job.stdin is not None and isinstance(outcome, Report) and outcome.outcome == "printed")


def _line(outcome: Report | Limit | Failed) -> str:
    if isinstance(outcome, Limit):
        return f"limit of {outcome.kind}"
    return outcome.detail or (outcome.outcome if isinstance(outcome, Report) else outcome.error_kind)
