"""Runs tests of programs in the best tier that works on this machine. The first test starts the first process.

run() ──> one permit per sandbox process ──> an idle sandbox process, or a new one ──> RunReport | Limit | Failed
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from olmorl.clock import Clock, SystemClock
from olmorl.config import Verifiers
from olmorl.verifiers.check_outcomes import Counters, Done, Failed, Limit
from olmorl.verifiers.code.inside.bridge.expected_objects import STEPS
from olmorl.verifiers.code.inside.isolation.restrictions import longest_s
from olmorl.verifiers.code.sandbox import tiers
from olmorl.verifiers.code.sandbox.messages import ProcessEnd, ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sample_attacks import ATTACKS
from olmorl.verifiers.code.sandbox.sandbox_process import SandboxLost, SandboxProcess, SandboxStartFailed
from olmorl.verifiers.pool.pool import RETRIES

START_TIMEOUT_S = 60.0
STRIKES = 2
PROBE = ProgramTest("def double(x):\n    return 2 * x\n", "assert double(21) == 42")
LIMITS = ("memory", "time", "output")
_ADVICE = {
    "auto": "; install bubblewrap and allow user namespaces",
    "bubblewrap": '; allow it, or choose the weaker sandbox by name: verifiers.code_tier = "landlock"',
    "landlock": '; verifiers.code_tier = "bubblewrap" may work',
    "unsafe": "",
}
_VETTED: dict[str, list[str]] = {}
"""For each tier tried in this process, the attacks that succeeded."""


@dataclass
class SandboxCounters(Counters):
    """`checks` counts tests, `starts` sandbox processes, and `kills` tests that exceeded their wall-clock time."""

    cpu_s: float = 0.0
    """CPU seconds of test and program processes."""


class Sandbox:
    """Each sandbox process runs at most one test at a time. No test runs outside a sandbox process."""

    def __init__(self, settings: Verifiers, clock: Clock | None = None, vet: bool = True) -> None:
        """
        Args:
            vet: whether a tier must stop the sample attacks before its first use in this process.
        """
        self.counters = SandboxCounters()
        self.tier = ""
        """The tier in use; empty before the first test."""
        self.refused: dict[str, str] = {}
        """For each better tier, the reason why it does not work here."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._permits = asyncio.Semaphore(settings.workers)
        self._idle: list[SandboxProcess] = []
        self._busy: set[SandboxProcess] = set()
        self._starting = asyncio.Lock()
        self._closed = False
        self._longest_s = longest_s(settings.code_test_timeout_s)
        self._vet = vet

    async def run(self, job: ProgramTest) -> RunReport | Limit | Failed:
        """Run one test, as `timed` does."""
        return (await self.timed(job))[0]

    async def timed(self, job: ProgramTest) -> tuple[RunReport | Limit | Failed, float]:
        """Run one test. Returns its outcome, and its seconds without the wait for a permit.

        A program that exceeds a limit gives a `Limit`. A test is repeated if it exceeds its wall-clock time without
        using the CPU, or if it ends for an unknown reason. If the repeat ends the same way, and a known-good test
        passed on the same sandbox process before it, the outcome is a `Limit`.
        """
        async with self._permits:
            started = self._clock.now()
            outcome = await self._decided(job)
            spent = self._clock.now() - started
        self.counters.add(Done(None) if isinstance(outcome, RunReport) else outcome, spent)
        return outcome, spent

    async def close(self) -> None:
        """End all sandbox processes. A test that is still running fails."""
        self._closed = True
        await asyncio.gather(*(process.close() for process in self._idle), *(process.kill() for process in self._busy))
        self._idle.clear()

    async def _decided(self, job: ProgramTest) -> RunReport | Limit | Failed:
        """Run a test. One that passed must fail when it expects other objects."""
        outcome = await self._attempts(job)
        if not _passed(outcome) or not outcome.expected:
            return outcome
        for step in range(len(STEPS)):
            other = await self._attempts(msgspec.structs.replace(job, altered=outcome.expected, step=step))
            if isinstance(other, Failed):
                return other
            if _passed(other):
                return RunReport("failed", "the test passes when it expects other objects as well")
        return RunReport("passed")

    async def _attempts(self, job: ProgramTest) -> RunReport | Limit | Failed:
        strikes = failures = 0
        while True:
            result = await self._attempt(job, probe=strikes > 0)
            if isinstance(result, Limit):
                strikes += 1
                if strikes == STRIKES:
                    return result
            elif isinstance(result, Failed):
                failures += 1
                if failures > RETRIES or self._closed or not self.tier:
                    return result
            elif result.outcome in LIMITS:
                return Limit(result.outcome)
            else:
                return result

    async def _attempt(self, job: ProgramTest, probe: bool) -> RunReport | Limit | Failed:
        """Run the test once. Returns a report, a limit, or a failure of the sandbox."""
        try:
            process = self._idle.pop() if self._idle else await self.start_process()
        except SandboxStartFailed as error:
            return Failed("sandbox_start" if self.tier else "no_sandbox", str(error))
        self._busy.add(process)
        try:
            if probe:
                report, _ = await process.run(PROBE, self._longest_s)
                if report is None or report.outcome != "passed":
                    await process.close()
                    return Failed(
                        "unhealthy_sandbox", f"a known-good test ended as {report}; the sandbox process is replaced"
                    )
            report, ended = await process.run(job, self._longest_s)
        except SandboxLost as error:
            return Failed("sandbox_lost", str(error))
        finally:
            self._busy.discard(process)
        self._idle.append(process)
        self.counters.cpu_s += ended.cpu_s
        return report or self._unreported(ended)

    def _unreported(self, ended: ProcessEnd) -> RunReport | Limit:
        """The outcome of a test whose process ended without a report."""
        if ended.cpu_s > 0.9 * self._settings.code_test_timeout_s:
            return RunReport("time", "the test exceeded its CPU time limit")
        self.counters.kills += not ended.in_time
        return Limit("crash" if ended.in_time else "timeout")

    async def start_process(self) -> SandboxProcess:
        """Start a sandbox process in the best tier that works. Raises SandboxStartFailed when none does."""
        async with self._starting:
            self.counters.starts += 1
            for name in (self.tier,) if self.tier else tiers.names(self._settings):
                try:
                    process = await self._start_in(name)
                except (OSError, SandboxStartFailed, SandboxLost) as error:
                    self.refused[name] = str(error)
                else:
                    self.tier = name
                    return process
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        raise SandboxStartFailed(f"no sandbox works on this machine ({reasons}){_ADVICE[self._settings.code_tier]}")

    async def _start_in(self, name: str) -> SandboxProcess:
        """Start a sandbox process that passes a known-good test."""
        if self._closed:
            raise SandboxStartFailed("the sandbox is closed")
        tier = await asyncio.to_thread(tiers.tier, name, self._settings, self.counters.starts)
        process = await SandboxProcess.start(tier, START_TIMEOUT_S)
        report, _ = await process.run(PROBE, self._longest_s)
        if report is None or report.outcome != "passed":
            await process.close()
            raise SandboxStartFailed(f"a known-good test ended as {report}")
        if self._vet:
            await self._try_attacks(name, process)
        return process

    async def _try_attacks(self, name: str, process: SandboxProcess) -> None:
        """Try the fast attacks, once per tier in this process. Raises SandboxStartFailed when one succeeds."""
        if name not in _VETTED:
            _VETTED[name] = [
                attack.kind
                for attack in ATTACKS
                if not attack.slow and not (attack.breaks_out and name == "unsafe")
                if not attack.stopped_by((await process.run(attack.job, self._longest_s))[0])
            ]
        if _VETTED[name]:
            await process.close()
            raise SandboxStartFailed(f"it lets attacks through: {', '.join(_VETTED[name])}")


def _passed(outcome: RunReport | Limit | Failed) -> TypeGuard[RunReport]:
    return isinstance(outcome, RunReport) and outcome.outcome == "passed"
