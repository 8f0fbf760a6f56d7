"""One slot of the pool: it replaces its worker when needed, and repeats a failed check."""

from __future__ import annotations

import signal
from typing import NamedTuple

from olmorl.clock import Clock
from olmorl.verifiers.check_outcomes import Counters, Done, Failed, Limit, Outcome, WorkerProbe
from olmorl.verifiers.pool import pool_protocol
from olmorl.verifiers.pool.fork_server import DeadlineMissed, ForkServer, Worker, WorkerLost, WorkerStartFailed

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
"""Signals that a check itself causes. Other signals come from outside."""
STRIKES = 2


class RetryPolicy(NamedTuple):
    """The limits for repeating a check and for replacing a worker."""

    timeout_s: float
    recycle_after: int
    retries: int


class _Strike(NamedTuple):
    """An attempt exceeded a limit, perhaps because of the input."""

    kind: str


class WorkerSlot:
    """A slot has at most one worker, and the worker has at most one check."""

    def __init__(self, fork_server: ForkServer, policy: RetryPolicy, counters: Counters, clock: Clock) -> None:
        self._fork_server = fork_server
        self._policy = policy
        self._counters = counters
        self._clock = clock
        self._worker: Worker | None = None

    async def fill(self) -> Worker:
        """The worker of the slot. Starts a new one if needed. Raises WorkerStartFailed."""
        if self._worker is not None and self._worker.checks >= self._policy.recycle_after:
            self.empty()
        if self._worker is None or not self._worker.alive:
            self._counters.starts += 1
            self._worker = await self._fork_server.start_worker()
        return self._worker

    def empty(self) -> None:
        """Let the worker exit."""
        if self._worker is not None:
            self._worker.retire()
            self._worker = None

    def kill(self) -> None:
        """Kill the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    async def check(self, call: bytes, probe: WorkerProbe | None) -> Outcome:
        """Make all attempts at one check: at most `retries` failures, and with a probe at most two strikes."""
        strikes = failures = 0
        while True:
            result = await self._attempt(call, probe if strikes else None)
            if isinstance(result, Done):
                return result
            if isinstance(result, _Strike):
                if probe is not None:
                    strikes += 1
                    if strikes == STRIKES:
                        return Limit(result.kind)
                    continue
                result = Failed(result.kind, f"exceeded the {result.kind} limit")
            failures += 1
            if failures > self._policy.retries:
                return result
            if result.error_kind == "worker_start":
                await self._clock.sleep(min(0.1 * 2**failures, 2.0))

    async def _attempt(self, call: bytes, probe: WorkerProbe | None) -> Done | _Strike | Failed:
        """Make one attempt. If `probe` is given, the worker must pass it first."""
        if probe is not None:
            healthy = await self._ask(pool_protocol.encode(pool_protocol.TaskCall(probe.task, probe.args)))
            if healthy != Done(probe.value):
                return Failed("unhealthy_worker", f"a known-good check ended as {healthy} on the same worker")
        return await self._ask(call)

    async def _ask(self, call: bytes) -> Done | _Strike | Failed:
        try:
            worker = await self.fill()
        except WorkerStartFailed as error:
            return Failed("worker_start", str(error))
        try:
            reply = await worker.ask(call, self._policy.timeout_s)
        except DeadlineMissed:
            self._counters.kills += 1
            return _Strike("timeout")
        except WorkerLost as error:
            cause = await worker.cause()
            if cause in CRASHES:
                return _Strike("crash")
            return Failed("worker_lost", str(error) or f"its process ended ({cause})")
        if reply.kind == "memory":
            self.empty()
            return _Strike("memory")
        return Done(reply.value) if reply.kind == "done" else Failed("raised", reply.detail)
