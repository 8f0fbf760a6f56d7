"""Starts and restarts the learner: the orchestrator and all ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from olmorl import deadlines
from olmorl.clock import within
from olmorl.deploy.cluster.ray_cluster import ReservedPlace
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes import rank_process
from olmorl.deploy.processes.orchestrator_process import Opened, OrchestratorProcess
from olmorl.deploy.processes.rank_process import RankProcess
from olmorl.deploy.supervision.policies import Context, GiveUp, Heartbeats, Restarts, is_final, poll, wait_for_start
from olmorl.deploy.tracking.feed import CLOSE_S
from olmorl.deploy.tracking.tracking import environment_of_launcher
from olmorl.deploy.view.live_view import Status
from olmorl.errors import DeadlinePassed, OlmoRLError, ProcessLost, RunEnded, first_cause
from olmorl.messages import Owner, Wait

_LOAD_DEADLINE_S = 3600.0
"""Time for the orchestrator to read and tokenise all data."""
_START_DEADLINE_S = 120.0
"""Also for a sign of life of an orchestrator that opens the run, and may read a ledger of millions of draws."""
_ORDER_DEADLINE_S = 30.0
_GO_ON = "mend the cause, then --resume goes on from the last checkpoint"
_TRACKING_DEADLINE_S = 2 * CLOSE_S
_SAY_AGAIN_S = 20.0
"""Pause between two reports on the reading of data."""


class LearnerSupervisor:
    """The orchestrator and the ranks are one incarnation: when one is lost, all start again from the last checkpoint.

    A healthy orchestrator stays and opens the run again, so it does not read the data a second time.
    """

    def __init__(self, context: Context, places: Sequence[ReservedPlace], access: QueueAccess) -> None:
        self._context = context
        self._places = places
        self._access = access
        self._restarts = Restarts(is_final)
        self._orchestrator: RemoteProcess | None = None
        self._ranks: list[RemoteProcess] = []
        self._training: list[RemoteProcess] = []
        self._training_since = 0.0
        self._pulses = Heartbeats()
        self._opened = asyncio.Event()
        self._closed_at = time.monotonic()
        self.incarnation = 0
        self._highest_step = 0
        """The highest step of all starts."""
        self._steps_seen: tuple[int, int] | None = None
        """The first and the newest step of this start, once they are known."""
        self._lines_shown = 0
        """Number of the newest metric line of this orchestrator that people have seen."""
        self._stopping = False

    # --- life -------------------------------------------------------------------------------------

    async def open(self, resume: bool, from_step: int | None) -> Opened:
        """Take the run over: reads all data the first time; errors are final here."""
        if self._orchestrator is None:
            self._orchestrator = await self._start_orchestrator()
        opened = await self._watched_open(self._orchestrator, resume, from_step)
        self._orchestrator.begin("run")
        self.incarnation = opened.incarnation
        # The order to resume is sent too: the queue may still hold a pause of an earlier orchestrator.
        patience_s = self._context.settings.queue.outage_deadline_s + self._context.supervision.deadlines.answer_s
        told: list[str] = []
        while told != (
            orders := ["pause" if self._context.paused else "resume", *(["stop"] if self._stopping else [])]
        ):
            for order in orders:
                await _answer_or_kill(self._orchestrator, order, timeout_s=patience_s)
            told = orders
        self._opened.set()
        return opened

    async def _watched_open(self, orchestrator: RemoteProcess, resume: bool, from_step: int | None) -> Opened:
        try:
            async with asyncio.TaskGroup() as tasks:
                patience_s = max(self._context.supervision.deadlines.answer_s, _START_DEADLINE_S)
                watch = tasks.create_task(self._watch_loading(orchestrator, patience_s))
                opened: Opened = await _answer_or_kill(
                    orchestrator, "open", resume, from_step, timeout_s=_LOAD_DEADLINE_S
                )
                watch.cancel()
                return opened
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _watch_loading(self, orchestrator: RemoteProcess, patience_s: float) -> None:
        said, said_at = "", time.monotonic()
        async for loaded in poll(orchestrator, "loading", patience_s):
            if loaded != said and time.monotonic() - said_at > _SAY_AGAIN_S:
                said, said_at = loaded, time.monotonic()
                self._context.say(said)

    async def supervise(self) -> str:
        """Keep the learner alive until every step is done, the data are used up or it is stopped; returns which.

        Raises:
            OlmoRLError: the cause, when another start would not help, or too many have failed.
        """
        while True:
            try:
                if not self._opened.is_set():
                    await self.open(resume=True, from_step=None)
                await self._start_ranks()
                return await self._until_over()
            except OlmoRLError as error:
                try:
                    await self._wait_for_restart(error)
                except OlmoRLError:
                    await self._close_tracking()
                    raise

    async def _start_orchestrator(self) -> RemoteProcess:
        context = self._context
        asked = (context.tree, self._access, environment_of_launcher())
        process = context.cluster.start(OrchestratorProcess, "orchestrator", self._places[0], *asked, calls=10_000)
        self._lines_shown = 0
        context.processes.add("orchestrator", await wait_for_start(process, _START_DEADLINE_S))
        return process

    async def _start_ranks(self) -> None:
        assert self._orchestrator is not None
        context, placement = self._context, self._context.placement
        self._ranks = []
        for rank, place in enumerate(self._places):
            asked = (context.tree, rank, placement.rank_cores[rank])
            self._ranks.append(
                rank_process.start(context.cluster, placement, RankProcess, f"learner-{rank}", place, *asked)
            )
        for process in self._ranks:
            context.processes.add(process.name, await wait_for_start(process, _START_DEADLINE_S))
        meeting_point = await _answer_or_kill(self._ranks[0], "meeting_point", timeout_s=_START_DEADLINE_S)
        for process in self._ranks:
            process.begin("run", meeting_point, self._orchestrator.handle, self.incarnation)
        self._training, self._pulses, self._training_since = self._ranks, Heartbeats(), time.monotonic()

    async def _until_over(self) -> str:
        assert self._orchestrator is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_attend(self._orchestrator, self._context.supervision.deadlines.answer_s))
                members = [tasks.create_task(process.ended()) for process in (self._orchestrator, *self._ranks)]
                await asyncio.wait(members)
                watch.cancel()
            return str(members[0].result())
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _wait_for_restart(self, error: OlmoRLError) -> None:
        """End the others, and wait for the next start. If there is none, raise the error or its consequence."""
        delay = self._restarts.after_death(error, start_error=str(error))
        if delay is GiveUp.FINAL_ERROR:
            raise error
        if self._stopping:
            raise RunEnded(f"{error}; a stop was asked for, so it does not start again: --resume goes on") from error
        self._end_start()
        if delay is GiveUp.SAME_ERROR:
            raise RunEnded(f"the learner failed twice in a row with the same error: {error}; {_GO_ON}") from error
        if isinstance(delay, GiveUp):
            raise RunEnded(
                f"the learner was started {deadlines.MOST_RESTARTS} times in a row without taking a step, "
                f"and lost again: {error}; {_GO_ON}"
            ) from error
        self._context.processes.note("learner", "restarting", str(error))
        self._context.say(f"{error}: the learner starts again from its last checkpoint; actors go on")
        await asyncio.sleep(delay)
        await self._end_orchestrator_unless_well()

    def _end_start(self) -> None:
        """Kill the ranks. Until the next start is open, the state of the learner is unknown."""
        self._opened.clear()
        self._closed_at = time.monotonic()
        self._steps_seen = None
        self._training = []
        for process in self._ranks:
            process.kill()
            self._context.processes.remove(process.name)

    async def _close_tracking(self) -> None:
        if self._orchestrator is not None:
            with suppress(ProcessLost, DeadlinePassed):
                await self._orchestrator.call("close_tracking", timeout_s=_TRACKING_DEADLINE_S)

    async def _end_orchestrator_unless_well(self) -> None:
        if self._orchestrator is None:
            return
        try:
            await self._orchestrator.call("identity", timeout_s=self._context.supervision.deadlines.answer_s)
        except (DeadlinePassed, ProcessLost):
            self._orchestrator.kill()
            self._context.processes.remove("orchestrator")
            self._orchestrator = None

    # --- queries ------------------------------------------------------------------------------------

    @property
    def num_restarts(self) -> int:
        return self._restarts.deaths

    @property
    def is_fresh(self) -> bool:
        """Whether it has taken no step since it started: a stop has nothing to write."""
        return self._steps_seen is None or self._steps_seen[0] == self._steps_seen[1]

    @property
    def state(self) -> str:
        """The state of the learner: `starting`, `paused` or `running`."""
        if not self._opened.is_set():
            return "starting"
        return "paused" if self._context.paused else "running"

    def waits(self) -> list[Wait]:
        """The wait for the orchestrator to open the run: it cannot report that wait itself."""
        if self._opened.is_set():
            return []
        waited_s = time.monotonic() - self._closed_at
        return [Wait("the ledger and the data", Owner.ORCHESTRATOR, waited_s, _LOAD_DEADLINE_S)]

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call the orchestrator of this incarnation, once it has opened the run.

        Raises:
            DeadlinePassed: it has not opened the run yet, or does not answer.
            ProcessLost: it is lost.
        """
        async with within(timeout_s, "the orchestrator, which starts"):
            await self._opened.wait()
        incarnation, orchestrator = self.incarnation, self._orchestrator
        assert orchestrator is not None
        try:
            answer = await orchestrator.call(method, *args, timeout_s=timeout_s)
        except OlmoRLError as error:
            if self._is_open(incarnation):
                raise
            raise ProcessLost(f"the learner starts again: {error}") from None
        if not self._is_open(incarnation):
            raise ProcessLost("the learner starts again")
        return answer

    def _is_open(self, incarnation: int) -> bool:
        return self._opened.is_set() and self.incarnation == incarnation

    async def status(self, dead_actors: Sequence[str]) -> Status:
        """The state of the run, with the metric lines that were not shown yet. Prompts of dead actors are released.

        Raises:
            DeadlinePassed, ProcessLost: as `call`.
        """
        patience_s = self._context.settings.queue.outage_deadline_s + self._context.supervision.deadlines.answer_s
        await self.call("attend", self._lines_shown, timeout_s=patience_s)
        if dead_actors:
            await self.call("release_leases", dead_actors, timeout_s=patience_s)
        status: Status = await self.call("status", self._lines_shown, timeout_s=patience_s)
        return status

    def note_shown(self, status: Status) -> None:
        """People have seen the metric lines of this status: the orchestrator need not keep them."""
        self._lines_shown = max(self._lines_shown, status.newest_line)

    def note_status(self, status: Status, now: float) -> None:
        """Take note of ranks and waits at time `now`, and kill a rank that is over a deadline."""
        if status.step > self._highest_step:
            self._highest_step = status.step
            self._restarts.note_work()
        first, _ = self._steps_seen or (status.step, status.step)
        self._steps_seen = first, status.step
        self._pulses.note({process.name: status.pulses.get(process.name, 0) for process in self._training}, now)
        limit_s = self._context.supervision.deadlines.answer_s
        for process in self._training:
            if self._pulses.silent_s(process.name) > limit_s:
                process.kill(f"gave no sign of life for {limit_s:g} s")
        for wait in status.waits:
            # The orchestrator waits since it is open. The ranks may have come much later.
            waited_s = min(wait.waited_s, time.monotonic() - self._training_since)
            if self._training and wait.owner is Owner.LEARNER and waited_s > wait.deadline_s:
                self._training[0].kill(f"and its group hang: {wait.what} has not come for {wait.deadline_s:g} s")
        self._check_weights(status)

    def _check_weights(self, status: Status) -> None:
        # Weights that one actor cannot fetch are a problem of its host. Weights that no actor can fetch are damaged at
        # their source, and only a new start of the learner publishes them again.
        damaged = {actor.damaged for actor in status.actors}
        version = damaged.pop() if len(damaged) == 1 else None
        if self._training and version is not None and version.incarnation == self.incarnation:
            self._training[0].kill(f"published weights {version}, which are damaged at their source")

    # --- commands -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End after the current micro-batch, with a checkpoint."""
        self._stopping = True
        await self._order("stop")

    async def pause(self) -> None:
        """Draw and lease no more."""
        self._context.paused = True
        await self._order("pause")

    async def resume(self) -> None:
        """Continue after a pause."""
        self._context.paused = False
        await self._order("resume")

    async def _order(self, order: str) -> None:
        # A start gets the order when it opens, also a start that replaces a hanging orchestrator.
        with suppress(ProcessLost, DeadlinePassed):
            await self.call(order, timeout_s=_ORDER_DEADLINE_S)


async def _attend(orchestrator: RemoteProcess, deadline_s: float) -> None:
    async for _ in poll(orchestrator, "attend", deadline_s):
        pass


async def _answer_or_kill(process: RemoteProcess, method: str, *args: Any, timeout_s: float) -> Any:
    """The answer of a process that starts. Without an answer it is killed: another start may succeed."""
    try:
        return await process.call(method, *args, timeout_s=timeout_s)
    except DeadlinePassed as error:
        process.kill()
        raise ProcessLost(str(error)) from None
