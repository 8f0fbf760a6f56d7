"""The assembler as a process: what the ranks of its incarnation call, and what the launcher calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from olmorl import codec
from olmorl.clock import SystemClock
from olmorl.deploy import semaphores, wiring
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.hosts import Host, Tree
from olmorl.deploy.lifeline import Attendance
from olmorl.deploy.plan import plan
from olmorl.deploy.process import Identity
from olmorl.deploy.progress import Status
from olmorl.errors import ResourceError, Superseded
from olmorl.learner.assembler import Assembler
from olmorl.learner.dead_letters import Letter
from olmorl.messages import StepReport, Version

LISTEN_S = 20.0
"""How long one question for a step waits for its answer."""
MOST_LINES = 1000
"""Metric lines kept for a launcher, should there be one to show them."""


class Opened(NamedTuple):
    """What a start of the learner begins with."""

    incarnation: int
    notes: Sequence[str]
    """What people should know of the data."""


class AssemblerHost(Host):
    """One assembler at a time: opening the run again ends the one before, and refuses the ranks that belonged to it."""

    def __init__(self, tree: Tree, access: QueueAccess) -> None:
        super().__init__(tree, "assembler")
        self._access = access
        self._data: Any = None
        self._clock = SystemClock()
        self._attendance = Attendance(self.settings.supervision, self._clock)
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._pulses: dict[str, float] = {}
        self._opening = False
        self._loaded = ""
        self._running: asyncio.Task[str] | None = None
        self._asked: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, resume: bool, from_step: int | None) -> Opened:
        """Take the run over: at its start, and again when ranks were lost. Data is read once."""
        self._opening = True
        try:
            return await self._open(resume, from_step)
        finally:
            self._opening = False
            self._attendance.looked()

    async def _open(self, resume: bool, from_step: int | None) -> Opened:
        await self._end()
        if self._data is None:
            self._data = await asyncio.to_thread(wiring.prompts, self.settings, self._note_loaded)
        self._loaded = ""
        stream, evaluations, notes = self._data
        self._queue = await wiring.join_queue(self.settings, self._access)
        self._assembler: Assembler = wiring.assembler(
            self.settings, self._queue, stream, evaluations, self._observe, resume=resume, from_step=from_step
        )
        await self._assembler.open()
        return Opened(self._assembler.incarnation, notes)

    def _note_loaded(self, name: str, number: int) -> None:
        self._loaded = f"reading the data: {number:,} rows of {name} so far"

    async def run(self) -> str:
        """Until the run is over, or opened again; returns why."""
        self._running = asyncio.create_task(self._assembler.run())
        await asyncio.wait([self._running])
        semaphores.unlink_own()
        return "opened again" if self._running.cancelled() else self._running.result()

    async def _end(self) -> None:
        if self._running is not None:
            tasks = [self._running, *self._asked.values(), *self._answering]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._queue.close()
        self._asked.clear()
        self._pulses.clear()

    def _observe(self, line: Mapping[str, Any]) -> None:
        if "step" in line:  # else the rest of a line that was handed out
            self._lines.append(dict(line))
        self.telemetry.record(line)

    # --- what the launcher calls --------------------------------------------------------------------

    async def status(self, dead: Sequence[str]) -> Status:
        """For the one launcher that watches: each metrics line is handed out once. The actors `dead` are buried."""
        self._attendance.looked()
        semaphores.unlink_own()  # at the end it is too late for one that is killed
        for owner in dead:
            await self._assembler.orders.bury(owner)
        step, counts = await self._assembler.look()
        actors = await self._queue.statuses()
        lines = list(self._lines)
        self._lines.clear()
        return Status(
            step=step,
            steps=self.settings.schedule.steps,
            lines=lines,
            queued=counts.queued,
            leased=counts.leased,
            results=counts.results,
            actors=sorted(actors.values(), key=lambda status: status.name),
            pulses=dict(self._pulses),
            waits=self._assembler.waits.look(),
        )

    def who(self) -> Identity:
        """As any process; who asks is a launcher."""
        self._attendance.looked()
        return super().who()

    async def loading(self) -> str:
        """How far a start is with the data; who asks is a launcher."""
        self._attendance.looked()
        return self._loaded

    async def stop(self) -> None:
        """Stop after the current micro-batch, with a checkpoint."""
        self._assembler.orders.stop()

    async def pause(self) -> None:
        await self._assembler.orders.pause()

    async def resume(self) -> None:
        await self._assembler.orders.resume()

    async def save(self) -> int:
        """Write a checkpoint after the current step; returns that step once it is complete."""
        return await self._assembler.save()

    async def dead_letters(self, replay: bool) -> tuple[list[Letter], list[int]]:
        """All of them, and the draws that are replayed if that is asked for."""
        if replay and self._running is not None and self._running.done():
            raise ResourceError("the run is over: ask for a replay once it goes on (olmorl-launch --resume)")
        letters = await self._assembler.dead_letters.look()
        return letters, await self._assembler.dead_letters.replay() if replay else []

    # --- what every process asks of it ---------------------------------------------------------------

    async def needed(self) -> bool:
        """Whether the run goes on, or a launcher looks after it."""
        if self._opening:
            return True
        if self._running is None or self._running.done():
            return self._attendance.needed([], overdue=False)
        waits = self._assembler.waits
        overdue = waits.paused or any(wait.waited_s > wait.deadline_s for wait in waits.look())
        complete = len(self._pulses) == plan(self.settings).ranks
        return self._attendance.needed(self._pulses.values() if complete else [], overdue)

    # --- what the ranks call (`BatchSource`), as bytes ------------------------------------------------

    def _of(self, incarnation: int) -> Assembler:
        if self._opening or incarnation != self._assembler.incarnation:
            raise Superseded(f"a rank of incarnation {incarnation} by incarnation {self._assembler.incarnation}")
        return self._assembler

    async def pulse(self, incarnation: int, rank: str) -> None:
        """A rank lives."""
        if incarnation == self._assembler.incarnation:
            self._pulses[rank] = self._clock.now()

    async def begin(self, incarnation: int, rank: int) -> bytes:
        return codec.encode(await self._of(incarnation).begin(rank))

    async def next(self, incarnation: int, rank: int, step: int) -> bytes | None:
        """None while there is nothing: the rank asks again."""
        assembler = self._of(incarnation)
        if (rank, step) not in self._asked:
            self._asked[rank, step] = asyncio.create_task(assembler.next(rank, step))
        asked = self._asked[rank, step]
        await asyncio.wait([asked], timeout=LISTEN_S)
        if not asked.done():
            return None
        del self._asked[rank, step]
        return codec.encode(asked.result())

    async def report(self, incarnation: int, report: bytes) -> None:
        await self._answer(self._of(incarnation).report(codec.decode(report, StepReport)))

    async def published(self, incarnation: int, version: str, seconds: float) -> None:
        await self._answer(self._of(incarnation).published(Version.parse(version), seconds))

    async def stop_asked(self, incarnation: int) -> bool:
        return await self._of(incarnation).stop_asked()

    async def given_up(self, incarnation: int, step: int) -> None:
        await self._of(incarnation).given_up(step)

    async def saved(self, incarnation: int, rank: int, step: int) -> None:
        await self._answer(self._of(incarnation).saved(rank, step))

    async def _answer(self, call: Coroutine[Any, Any, None]) -> None:
        """Ends with the assembler that is asked: it must not go on beside the next one."""
        answering = asyncio.create_task(call)
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        await asyncio.wait([answering])
        if answering.cancelled():
            raise Superseded("the run was opened again meanwhile")
        answering.result()
