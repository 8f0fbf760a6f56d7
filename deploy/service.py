"""The life of a run: what starts after what, who keeps it alive, how it ends.

task      keeps                                                 ends with
queue     the embedded Redis (`queue_server`)                   the run, or what it cannot mend
learner   assembler and ranks (`learner_group`)                 the last checkpoint, or what it cannot mend
actors    one actor in every slot (`fleet`)                     the run, or when nobody is left
look      the view, the metrics, the heartbeats, the waits      the run
endpoint  what people ask for (`commands`)                      the run
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from types import TracebackType

from olmorl.config import Config
from olmorl.deploy import checklist, hosts, wiring
from olmorl.deploy.access import QueueAccess, forget_token, make_token, run_id
from olmorl.deploy.cluster import Cluster
from olmorl.deploy.commands import Commands
from olmorl.deploy.endpoint import Endpoint
from olmorl.deploy.fleet import Fleet
from olmorl.deploy.learner_group import LearnerGroup
from olmorl.deploy.lock import RunLock
from olmorl.deploy.plan import plan
from olmorl.deploy.process import Identity
from olmorl.deploy.progress import Progress, Status, summary
from olmorl.deploy.queue_server import QueueServer
from olmorl.deploy.roster import Roster
from olmorl.deploy.rundir import KeptRecipe, logged, metric_lines
from olmorl.deploy.signals import Signals, unheard
from olmorl.deploy.supervise import Context, Restarts, Watchdog
from olmorl.deploy.takeover import take_over
from olmorl.errors import DeadlinePassed, HostLost, OlmoRLError, ProcessLost, RunEnded, first_cause
from olmorl.learner import ledger
from olmorl.learner.recovery import RunFiles
from olmorl.learner.waiting import Wait

log = logging.getLogger(__name__)
_LOOK_S = 0.5
_ATTEND_S = 5.0


class StoppedAtOnce(RunEnded):
    """A second signal: no checkpoint."""


class Service:
    """Owns every process of the run: what it started ends with it, unless it is killed."""

    def __init__(self, settings: Config, resume: bool, from_step: int | None, examine: bool) -> None:
        """`examine`: look at every host first."""
        self._settings = settings
        self._resume = resume
        self._from_step = from_step
        self._examine = examine
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._signals = Signals()
        self._watchdog = Watchdog()
        self._strangers: list[str] = []
        self._cluster: Cluster | None = None
        self._queue: QueueServer | None = None
        self._restarts = Restarts(settings.supervision)
        self._step_at_loss = 0
        self._num_engines = plan(settings).engines
        self._paused = False
        self._recipe = KeptRecipe(settings)

    def __enter__(self) -> Service:
        settings, placed = self._settings, plan(self._settings)
        with ExitStack() as stack:
            stack.enter_context(RunLock(settings.run_dir))
            self._token = make_token(settings.run_dir)
            stack.callback(forget_token, settings.run_dir)
            stack.callback(self._sweep)
            self._progress = Progress(settings.run.name)
            stack.enter_context(logged(settings.run_dir, "launcher"))
            self._cluster = cluster = stack.enter_context(Cluster(settings.cluster, placed, run_id(settings.run_dir)))
            self._context = Context(settings, placed, cluster, Roster(settings.run_dir), self._progress.say)
            stack.callback(self._clear)
            asyncio.run(take_over(cluster, settings, self._progress.say))
            self._clear()
            if self._examine:
                checklist.examine(settings, self._progress.console)
            self._telemetry = hosts.telemetry_of(settings, "launcher")
            stack.callback(self._telemetry.close)
            stack.enter_context(self._progress)
            self._stack = stack.pop_all()
        return self

    def _clear(self) -> None:
        """End all of the run, and remove what it had in shared memory."""
        context = self._context
        context.cluster.end_all()
        context.cluster.on_other_hosts(hosts.sweep, context.tree)
        self._sweep()
        context.roster.close()

    def _sweep(self) -> None:
        if self._cluster is None:
            return  # what is there may be in use: a run on a cluster goes on without its launcher
        # Where Ray is half gone, whoever asks it for what was published waits for a minute; others may need that yet.
        (wiring.sweep_here if self._cluster.is_broken else wiring.sweep)(self._settings)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with unheard():
            self._stack.close()

    def run(self) -> int:
        """The whole run; returns the exit code.

        Raises:
            RunEnded: the cause, when the learner, the queue or all actors failed for good.
        """
        try:
            return asyncio.run(self._run())
        except OlmoRLError as error:
            log.error("%s", error)
            raise

    async def _run(self) -> int:
        with self._signals.heard():
            try:
                await self._live()
            except BaseExceptionGroup as group:
                raise first_cause(group) from group
            except asyncio.CancelledError:
                raise StoppedAtOnce(f"stopped at once, without a checkpoint; {self._way_on()}") from None
            finally:
                if self._queue is not None and not self._context.cluster.is_broken:
                    # A second signal at the very end is in a hurry too.
                    with suppress(asyncio.CancelledError):
                        await self._queue.stop()
        lines = metric_lines(self._settings.run_dir)
        self._progress.console.print(summary(lines, self._settings.run_dir, time.monotonic() - self._began))
        return 0

    async def _live(self) -> None:
        """From the start of Redis to the end of all steps; once more from the start when the learner's host is lost."""
        while True:
            try:
                await self._start_unless_stopped()
                return await self._watch()
            except BaseExceptionGroup as group:
                if (lost := group.subgroup(HostLost)) is None:
                    raise
                self._paused, self._num_engines = self._learner.paused, self._fleet.size
                await self._after_loss(first_cause(lost))
            except ProcessLost as error:
                # At a start after a loss: another host was lost with the first, and Ray had not given it up yet.
                if not self._restarts.deaths:
                    raise
                await self._after_loss(error)

    async def _after_loss(self, error: BaseException) -> None:
        """Everybody knows the embedded Redis by the address of a host that is gone: all start again, as by --resume."""
        step = self._commands.status.step
        delay = self._restarts.after_death(worked=step > self._step_at_loss)
        self._step_at_loss = max(self._step_at_loss, step)
        if delay is None:
            raise RunEnded(f"the learner lost one host after the other without taking a step: {error}") from error
        self._progress.say(f"{error}: everything starts again on hosts that are there, from the last checkpoint")
        self._resume, self._from_step, self._strangers = True, None, []
        await asyncio.to_thread(self._clear)
        await asyncio.sleep(delay)

    # --- starting -------------------------------------------------------------------------------

    async def _start_unless_stopped(self) -> None:
        start, stop = asyncio.create_task(self._start()), asyncio.create_task(self._signals.stop_asked.wait())
        try:
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                raise StoppedAtOnce(f"stopped while it started; {self._way_on()}")
            start.result()
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.wait([start, stop])

    def _way_on(self) -> str:
        if ledger.incarnations(RunFiles(self._settings.run_dir).ledger):
            return "--resume goes on from the last checkpoint"
        return "nothing has begun: start it again, without --resume"

    async def _start(self) -> None:
        """Redis, then the assembler, then learner and engines side by side."""
        context = self._context
        context.roster.add("launcher", Identity(socket.gethostname(), os.getpid(), self._telemetry.address))
        with self._progress.placing("the learner", self._settings.cluster.wait_s):
            places = await context.cluster.place_learner()
        if self._settings.queue.url is None:
            self._queue = QueueServer(context, places[0])
            access = await self._queue.start()
        else:
            access = QueueAccess.of_recipe(self._settings.queue.url)
        self._learner = LearnerGroup(context, places, access, paused=self._paused)
        for note in (await self._learner.open(self._resume, self._from_step)).notes:
            self._progress.say(note)
        self._fleet = Fleet(context, access)
        self._commands = Commands(self._learner, self._fleet, self._signals.stop_asked)
        await self._bury_earlier_actors()
        # The buried were told to leave by their names, which the actors of this start have again.
        await (self._learner.pause() if self._paused else self._learner.resume())
        attending = asyncio.create_task(self._attend())
        try:
            with self._progress.placing(f"{self._num_engines} engine(s)", self._settings.cluster.wait_s):
                await self._fleet.place(self._num_engines)
        finally:
            attending.cancel()
            await asyncio.wait([attending])
        self._progress.say(
            f"starting {context.plan.ranks} learner rank(s) and {self._num_engines} engine(s); "
            f"logs are in {self._settings.run_dir / 'logs'}"
        )

    async def _attend(self) -> None:
        """While a place is waited for, the assembler has to hear that somebody looks after the run."""
        while True:
            with suppress(ProcessLost, DeadlinePassed):
                await self._learner.ask("who", timeout_s=self._settings.supervision.answer_deadline_s)
            await asyncio.sleep(_ATTEND_S)

    async def _bury_earlier_actors(self) -> None:
        """Actors of an earlier start ended with it: their prompts need not wait for their leases to expire."""
        await self._status()
        while self._strangers:
            await self._status()

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        async with self._endpoint(), asyncio.TaskGroup() as tasks:
            standing = [tasks.create_task(self._look()), tasks.create_task(self._fleet.keep())]
            standing += [tasks.create_task(self._obey_stop()), tasks.create_task(self._context.cluster.keep())]
            if self._queue is not None:
                standing.append(tasks.create_task(self._queue.keep()))
            await self._learner.keep()
            await self._fleet.stop(self._settings.cluster.stop_deadline_s / 2)
            for task in standing:
                task.cancel()

    @asynccontextmanager
    async def _endpoint(self) -> AsyncIterator[None]:
        settings = self._settings
        endpoint = Endpoint(settings.run_dir, wiring.own_address(settings), self._token, self._commands.table())
        try:
            await endpoint.start()
            yield
        finally:
            await endpoint.stop()

    async def _obey_stop(self) -> None:
        await self._signals.stop_asked.wait()
        self._progress.say("stopping: the micro-batch ends, then a checkpoint is written (again: at once)")
        await self._learner.stop()

    async def _look(self) -> None:
        while True:
            if waits := self._learner.waits():
                self._name_late(waits)
            else:
                # Whoever keeps the process that gave no answer deals with that.
                with suppress(ProcessLost, DeadlinePassed):
                    status = await self._status()
                    self._show(status)
                    await asyncio.to_thread(self._recipe.keep, bool(status.lines))
            await asyncio.sleep(_LOOK_S)

    async def _status(self) -> Status:
        patience_s = self._settings.queue.outage_deadline_s + self._settings.supervision.answer_deadline_s
        status: Status = await self._learner.ask("status", self._strangers, timeout_s=patience_s)
        now = time.monotonic()
        self._strangers = self._fleet.look(status.actors, now)
        self._learner.look(status, now)
        self._commands.status = status
        return status

    def _name_late(self, waits: Sequence[Wait]) -> None:
        for line in self._watchdog.look([*waits, *self._fleet.waits()]):
            self._progress.say(line)

    def _show(self, status: Status) -> None:
        self._name_late(status.waits)
        self._progress.show(status, self._fleet.troubles())
        self._context.roster.mend()
        self._telemetry.record(
            {
                "actors_running": sum(slot.process is not None for slot in self._fleet.slots),
                "actor_deaths_total": self._fleet.num_deaths,
                "learner_restarts_total": self._learner.num_restarts,
                "prompts_queued": status.queued,
                "prompts_leased": status.leased,
                "results_waiting": status.results,
            }
        )
