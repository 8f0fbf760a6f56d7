"""The learner as the launcher keeps it: the assembler and all ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from olmorl.clock import within
from olmorl.deploy import hosts
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.assembler_host import AssemblerHost, Opened
from olmorl.deploy.cluster import Place
from olmorl.deploy.process import Process
from olmorl.deploy.progress import Status
from olmorl.deploy.supervise import Context, Heartbeats, Restarts, introduced, is_passing, still_there
from olmorl.errors import DeadlinePassed, OlmoRLError, ProcessLost, RunEnded, first_cause
from olmorl.learner.assembler import ASSEMBLER
from olmorl.learner.owed import LEARNER
from olmorl.learner.waiting import Wait

_LOAD_DEADLINE_S = 3600.0
"""For the assembler to read and tokenise all data."""
_START_DEADLINE_S = 120.0
"""Also for a sign of life of an assembler that opens the run: books of millions of draws are read in one go."""
_ORDER_DEADLINE_S = 30.0
_SAY_AGAIN_S = 20.0
"""Between two words on the data that are read."""


class LearnerGroup:
    """Assembler and ranks are one incarnation: when one of them is lost, all start again from the last checkpoint."""

    def __init__(self, context: Context, places: Sequence[Place], access: QueueAccess, *, paused: bool = False) -> None:
        self._context = context
        self._places = places
        self._access = access
        self._restarts = Restarts(context.supervision)
        self._assembler: Process | None = None
        self._ranks: list[Process] = []
        self._at_work: list[Process] = []
        self._pulses = Heartbeats()
        self._opened = asyncio.Event()
        self._closed_at = time.monotonic()
        self.incarnation = 0
        self._step = self._step_at_death = 0
        self._stopping = False
        self.paused = paused

    # --- life -------------------------------------------------------------------------------------

    async def open(self, resume: bool, from_step: int | None) -> Opened:
        """Take the run over: reads all data the first time; errors are final here."""
        if self._assembler is None:
            self._assembler = await self._start_assembler()
        opened = await self._watched_open(self._assembler, resume, from_step)
        self._assembler.begin("run")
        self.incarnation = opened.incarnation
        # Also that nothing is paused: the queue remembers a pause that an earlier assembler was told of.
        patience_s = self._context.settings.queue.outage_deadline_s + self._context.supervision.answer_deadline_s
        told: list[str] = []
        while told != (orders := ["pause" if self.paused else "resume", *(["stop"] if self._stopping else [])]):
            for order in orders:
                await _answered(self._assembler, order, timeout_s=patience_s)
            told = orders
        self._opened.set()
        return opened

    async def _watched_open(self, assembler: Process, resume: bool, from_step: int | None) -> Opened:
        try:
            async with asyncio.TaskGroup() as tasks:
                patience_s = max(self._context.supervision.answer_deadline_s, _START_DEADLINE_S)
                watch = tasks.create_task(self._watch_loading(assembler, patience_s))
                opened: Opened = await _answered(assembler, "open", resume, from_step, timeout_s=_LOAD_DEADLINE_S)
                watch.cancel()
                return opened
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _watch_loading(self, assembler: Process, patience_s: float) -> None:
        said, said_at = "", time.monotonic()
        async for loaded in still_there(assembler, "loading", patience_s):
            if loaded != said and time.monotonic() - said_at > _SAY_AGAIN_S:
                said, said_at = loaded, time.monotonic()
                self._context.say(said)

    async def keep(self) -> None:
        """Until every step is done or a stop was obeyed.

        Raises:
            OlmoRLError: the cause, where another start would not help, or where too many did not.
        """
        while True:
            try:
                if not self._opened.is_set():
                    await self.open(resume=True, from_step=None)
                await self._start_ranks()
                return await self._until_over()
            except OlmoRLError as error:
                await self._after(error)

    async def _start_assembler(self) -> Process:
        context = self._context
        process = context.cluster.start(
            AssemblerHost, "assembler", self._places[0], context.tree, self._access, calls=10_000
        )
        context.roster.add("assembler", await introduced(process, _START_DEADLINE_S))
        return process

    async def _start_ranks(self) -> None:
        assert self._assembler is not None
        context = self._context
        environment = hosts.learner_environment(context.settings, context.plan)
        self._ranks = [
            context.cluster.start(
                hosts.RankHost,
                f"learner-{rank}",
                place,
                context.tree,
                rank,
                context.plan.rank_cores[rank],
                gpus=int(context.plan.on_gpu),
                env=environment,
            )
            for rank, place in enumerate(self._places)
        ]
        for process in self._ranks:
            context.roster.add(process.name, await introduced(process, _START_DEADLINE_S))
        meeting_point = await _answered(self._ranks[0], "meeting_point", timeout_s=_START_DEADLINE_S)
        for process in self._ranks:
            process.begin("run", meeting_point, self._assembler.handle, self.incarnation)
        self._at_work, self._pulses = self._ranks, Heartbeats()

    async def _until_over(self) -> None:
        assert self._assembler is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_watch(self._assembler, self._context.supervision.answer_deadline_s))
                members = [tasks.create_task(process.ended()) for process in (self._assembler, *self._ranks)]
                await asyncio.wait(members)
                watch.cancel()
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _after(self, error: OlmoRLError) -> None:
        """End what is left, and wait before the next start; the error itself where there is to be none."""
        if not is_passing(error):
            raise error
        self._opened.clear()
        self._closed_at = time.monotonic()
        self._at_work = []
        for process in self._ranks:
            process.kill()
            self._context.roster.remove(process.name)
        delay = self._restarts.after_death(worked=self._step > self._step_at_death)
        self._step_at_death = self._step
        if delay is None:
            raise RunEnded(
                f"the learner was started {self._context.supervision.restarts} times in a row without taking a step, "
                f"and lost again: {error}"
            ) from error
        self._context.say(f"{error}: the learner starts again from its last checkpoint; actors go on")
        await asyncio.sleep(delay)
        await self._end_assembler_unless_well()

    async def _end_assembler_unless_well(self) -> None:
        if self._assembler is None:
            return
        try:
            await self._assembler.call("who", timeout_s=self._context.supervision.answer_deadline_s)
        except (DeadlinePassed, ProcessLost):
            self._assembler.kill()
            self._context.roster.remove("assembler")
            self._assembler = None

    # --- what is asked of it ------------------------------------------------------------------------

    @property
    def num_restarts(self) -> int:
        return self._restarts.deaths

    @property
    def state(self) -> str:
        """In a word."""
        if not self._opened.is_set():
            return "starting"
        return "paused" if self.paused else "running"

    def waits(self) -> list[Wait]:
        """What is waited for before the assembler can say so itself."""
        if self._opened.is_set():
            return []
        waited_s = time.monotonic() - self._closed_at
        return [Wait("the books and the data", ASSEMBLER, waited_s, _LOAD_DEADLINE_S)]

    async def ask(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call the assembler of this incarnation, once it is there.

        Raises:
            DeadlinePassed: it is not there yet, or does not answer.
            ProcessLost: it is not there any more.
        """
        async with within(timeout_s, "the assembler, which starts"):
            await self._opened.wait()
        incarnation, assembler = self.incarnation, self._assembler
        assert assembler is not None
        try:
            answer = await assembler.call(method, *args, timeout_s=timeout_s)
        except OlmoRLError as error:
            if self._is_open(incarnation):
                raise
            raise ProcessLost(f"the learner starts again: {error}") from None
        if not self._is_open(incarnation):
            raise ProcessLost("the learner starts again")
        return answer

    def _is_open(self, incarnation: int) -> bool:
        return self._opened.is_set() and self.incarnation == incarnation

    def look(self, status: Status, now: float) -> None:
        """Take note of what the assembler says at time `now` of ranks and waits; who is over a deadline is ended."""
        self._step = max(self._step, status.step)
        self._pulses.heard({process.name: status.pulses.get(process.name, 0) for process in self._at_work}, now)
        limit_s = self._context.supervision.answer_deadline_s
        for process in self._at_work:
            if self._pulses.silent_s(process.name) > limit_s:
                process.kill(f"gave no sign of life for {limit_s:g} s")
        for wait in status.waits:
            if self._at_work and wait.owner == LEARNER and wait.waited_s > wait.deadline_s:
                self._at_work[0].kill(f"and its group hang: {wait.what} has not come for {wait.deadline_s:g} s")
        self._check_weights(status)

    def _check_weights(self, status: Status) -> None:
        # What one actor cannot fetch is its host's trouble; what nobody can fetch only the learner can make anew.
        damaged = {actor.damaged for actor in status.actors}
        version = damaged.pop() if len(damaged) == 1 else None
        if self._at_work and version is not None and version.incarnation == self.incarnation:
            self._at_work[0].kill(f"published weights {version}, which are damaged where they lie")

    async def stop(self) -> None:
        """End after the current micro-batch, with a checkpoint."""
        self._stopping = True
        await self._order("stop")

    async def pause(self) -> None:
        """Draw and lease no more."""
        self.paused = True
        await self._order("pause")

    async def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        await self._order("resume")

    async def _order(self, order: str) -> None:
        # A start that is under way gets the word when it is open, and so does the one after an assembler that hangs.
        with suppress(ProcessLost, DeadlinePassed):
            await self.ask(order, timeout_s=_ORDER_DEADLINE_S)


async def _watch(assembler: Process, deadline_s: float) -> None:
    async for _ in still_there(assembler, "who", deadline_s):
        pass


async def _answered(process: Process, method: str, *args: Any, timeout_s: float) -> Any:
    """What a process that starts says. One that says nothing is killed and lost, as another may do better."""
    try:
        return await process.call(method, *args, timeout_s=timeout_s)
    except DeadlinePassed as error:
        process.kill()
        raise ProcessLost(str(error)) from None
