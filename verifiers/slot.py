"""One place of the pool: a worker, replaced whenever it is gone or worn, and the attempts at one check."""

from __future__ import annotations

import signal
from typing import NamedTuple

from olmorl.clock import Clock
from olmorl.verifiers import wire
from olmorl.verifiers.checks import Counters, Done, Failed, Limit, Outcome, Probe
from olmorl.verifiers.nursery import DeadlineMissed, Nursery, StartFailed, Worker, WorkerLost

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
"""Signals that a check brings upon itself. Others come from outside."""
STRIKES = 2


class Policy(NamedTuple):
    """When to give up on a check and when to replace a worker."""

    timeout_s: float
    recycle_after: int
    retries: int


class _Strike(NamedTuple):
    """An attempt that passed a limit, which may be the input's doing."""

    kind: str


class Slot:
    """Has at most one worker, which has at most one check."""

    def __init__(self, nursery: Nursery, policy: Policy, counters: Counters, clock: Clock) -> None:
        self._nursery = nursery
        self._policy = policy
        self._counters = counters
        self._clock = clock
        self._worker: Worker | None = None

    async def fill(self) -> Worker:
        """The worker; a new one if there was none, or it was worn. Raises StartFailed."""
        if self._worker is not None and self._worker.checks >= self._policy.recycle_after:
            self.empty()
        if self._worker is None or not self._worker.alive:
            self._counters.starts += 1
            self._worker = await self._nursery.hatch()
        return self._worker

    def empty(self) -> None:
        """Let the worker go."""
        if self._worker is not None:
            self._worker.retire()
            self._worker = None

    def kill(self) -> None:
        """End the worker whatever it is doing."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    async def check(self, frame: bytes, probe: Probe | None) -> Outcome:
        """All attempts at one check: at most `retries` failures, and with a probe at most two strikes."""
        strikes = failures = 0
        while True:
            result = await self._attempt(frame, probe if strikes else None)
            if isinstance(result, Done):
                return result
            if isinstance(result, _Strike):
                if probe is not None:
                    strikes += 1
                    if strikes == STRIKES:
                        return Limit(result.kind)
                    continue
                result = Failed(result.kind, f"passed its limit of {result.kind}")
            failures += 1
            if failures > self._policy.retries:
                return result
            if result.error_kind == "worker_start":
                await self._clock.sleep(min(0.1 * 2**failures, 2.0))

    async def _attempt(self, frame: bytes, probe: Probe | None) -> Done | _Strike | Failed:
        """One attempt, on a worker that passes `probe` first if there is one."""
        if probe is not None:
            healthy = await self._ask(wire.frame(wire.Job(probe.task, probe.args)))
            if healthy != Done(probe.value):
                return Failed("unhealthy_worker", f"a known-good check ended as {healthy} on the same worker")
        return await self._ask(frame)

    async def _ask(self, frame: bytes) -> Done | _Strike | Failed:
        try:
            worker = await self.fill()
        except StartFailed as error:
            return Failed("worker_start", str(error))
        try:
            reply = await worker.ask(frame, self._policy.timeout_s)
        except DeadlineMissed:
            self._counters.kills += 1
            return _Strike("timeout")
        except WorkerLost:
            cause = await worker.cause()
            return _Strike("crash") if cause in CRASHES else Failed("worker_lost", f"its process ended ({cause})")
        if reply.kind == "memory":
            self.empty()
            return _Strike("memory")
        return Done(reply.value) if reply.kind == "done" else Failed("raised", reply.detail)
