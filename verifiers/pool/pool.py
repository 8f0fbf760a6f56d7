"""The pool of worker processes. Every check that may hang, crash or use too much memory runs in a worker.

    run() ──> bounded queue ──> one slot per worker ──> the worker's socket ──> Done | Limit | Failed

A worker runs one check at a time, with a deadline and a memory limit. It is replaced after a kill, after a crash, and
after `recycle_after` checks.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from olmorl.clock import Clock, SystemClock
from olmorl.verifiers.check_outcomes import Counters, Failed, Outcome, WorkerProbe
from olmorl.verifiers.pool import pool_protocol
from olmorl.verifiers.pool.fork_server import ForkServer, WorkerStartFailed
from olmorl.verifiers.pool.worker import WorkerSettings
from olmorl.verifiers.pool.worker_slot import RetryPolicy, WorkerSlot

RETRIES = 2
"""Further attempts after a failure that the input did not cause. Then the group fails."""


class _Ticket(NamedTuple):
    call: bytes
    probe: WorkerProbe | None
    outcome: asyncio.Future[Outcome]


class Pool:
    """Every check ends within its deadline times the number of its attempts."""

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        memory_mib: int = 1024,
        recycle_after: int = 5000,
        retries: int = RETRIES,
        *,
        preload: tuple[str, ...] = (),
        setup: tuple[str, Any] | None = None,
        max_queued: int = 4096,
        start_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            workers: the number of processes.
            timeout_s: the deadline of one attempt at a check.
            memory_mib: the memory that a worker may allocate after its setup.
            recycle_after: the number of checks before a worker is replaced.
            retries: further attempts after a failure that the input did not cause.
            preload: `module:function`s called once in the fork server.
            setup: `module:function` and its argument, called in each new worker.
            max_queued: the most checks in the queue; when it is full, `run` waits for a place.
            start_timeout_s: the deadline for the start of the fork server, and of each worker.
        """
        self.counters = Counters()
        self._num_workers = workers
        self._policy = RetryPolicy(timeout_s, recycle_after, retries)
        self._clock = clock or SystemClock()
        self._fork_server = ForkServer(WorkerSettings(preload, setup, memory_mib), start_timeout_s)
        self._queue: asyncio.Queue[_Ticket] = asyncio.Queue(max_queued)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers. Raises WorkerStartFailed with the cause."""
        slots = [
            WorkerSlot(self._fork_server, self._policy, self.counters, self._clock) for _ in range(self._num_workers)
        ]
        try:
            for slot in slots:
                await slot.fill()
        except WorkerStartFailed:
            self._fork_server.close()
            raise
        self._tasks = [asyncio.create_task(self._serve(slot)) for slot in slots]

    async def stop(self) -> None:
        """End all workers. A caller that still waits for a check is cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        while not self._queue.empty():
            self._queue.get_nowait().outcome.cancel()
        self._fork_server.close()

    @property
    def queue_depth(self) -> int:
        """Checks that wait for a worker."""
        return self._queue.qsize()

    async def run(self, task: str, args: Any, probe: WorkerProbe | None = None) -> Outcome:
        """Run one check in a worker.

        Args:
            task: `module:function`, called with `args`.
            args: a value that msgpack can encode.
            probe: with a probe, an input that exceeds a limit twice gives a `Limit`; without one, `Failed`.

        The wait is bounded, because each attempt in the queue and each start of a worker has a deadline.
        """
        assert self._tasks, "the pool is not running"
        try:
            call = pool_protocol.encode(pool_protocol.TaskCall(task, args))
        except (TypeError, ValueError, OverflowError) as error:
            self.counters.add(failed := Failed("unsendable", str(error)), 0.0)
            return failed
        ticket = _Ticket(call, probe, asyncio.get_running_loop().create_future())
        await self._queue.put(ticket)
        return await ticket.outcome

    async def _serve(self, slot: WorkerSlot) -> None:
        """Answer tickets with one worker. Ends when `stop` cancels it."""
        try:
            while True:
                ticket = await self._queue.get()
                if not ticket.outcome.cancelled():
                    await self._answer(slot, ticket)
                await self._replace(slot)
        finally:
            slot.kill()

    async def _answer(self, slot: WorkerSlot, ticket: _Ticket) -> None:
        started = self._clock.now()
        try:
            outcome = await slot.check(ticket.call, ticket.probe)
        except asyncio.CancelledError:
            ticket.outcome.cancel()
            raise
        self.counters.add(outcome, self._clock.now() - started)
        if not ticket.outcome.cancelled():
            ticket.outcome.set_result(outcome)

    async def _replace(self, slot: WorkerSlot) -> None:
        """Start the next worker before the next check needs it."""
        try:
            await slot.fill()
        except WorkerStartFailed:
            return  # the next check tries again and reports the failure
