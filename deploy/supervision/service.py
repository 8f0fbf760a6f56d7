"""The life of a run: the order of its start, the tasks that keep it alive, its end.

task      keeps alive                                              ends with
redis     the embedded Redis (`redis_supervisor`)                  the run, or an error that it cannot mend
learner   the orchestrator and the ranks (`learner_supervisor`)    the last checkpoint, or an error that it cannot mend
actors    one actor in every slot (`actor_supervisor`)             the run, or when no actor is left
scaling   the number of actors (`autoscaler`), if the recipe asks    the run
statuses  the view, the metrics, the heartbeats (`status_loop`)    the run
endpoint  the commands of people (`commands`)                      the run
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

from rich.console import Console

from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.ray_cluster import RayCluster
from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.control import signals
from olmorl.deploy.control.endpoint import ControlEndpoint
from olmorl.deploy.control.signals import Signals
from olmorl.deploy.credentials import QueueAccess, forget_token, make_token, run_id
from olmorl.deploy.processes.log_files import logged
from olmorl.deploy.processes.prometheus import Telemetry
from olmorl.deploy.processes.run_process import metrics_server, sweep
from olmorl.deploy.supervision.actor_supervisor import ActorSupervisor
from olmorl.deploy.supervision.autoscaler import Autoscaler, follow
from olmorl.deploy.supervision.commands import Commands
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.supervision.policies import Context, GiveUp, Restarts
from olmorl.deploy.supervision.process_list import ProcessList
from olmorl.deploy.supervision.redis_supervisor import RedisSupervisor
from olmorl.deploy.supervision.run_lock import RunLock
from olmorl.deploy.supervision.status_loop import StatusLoop
from olmorl.deploy.supervision.takeover import take_over
from olmorl.deploy.view.live_view import LiveView, summary
from olmorl.deploy.view.run_state import FAILED, STOPPED, finished, metric_lines, note_end
from olmorl.deploy.view.start_phases import start_of_an_engine
from olmorl.deploy.view.verdict import Shape, verdict
from olmorl.errors import DeadlinePassed, HostLost, OlmoRLError, ProcessLost, RunEnded, first_cause
from olmorl.learner.algorithm.presets import staleness_warning
from olmorl.learner.storage import ledger
from olmorl.messages import STOP_ASKED
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)
_ATTEND_S = 5.0
_LAST_STATUS_S = 2.0
_GOES_ON = "--resume goes on from the last checkpoint"
Examine = Callable[[RayCluster, Console], None]
"""Checks every host of the cluster; raises ResourceError when a check fails."""


class StoppedAtOnce(RunEnded):
    """A stop before the first step, or a second signal: no checkpoint."""

    was_asked = True

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def open_service(
    settings: Config, resume: bool, from_step: int | None, examine: Examine | None = None
) -> Iterator[Service]:
    """Lock the run, join Ray, stop the processes of an earlier launcher, and afterwards end all processes of the run.

    Args:
        examine: checks every host before the run starts.
    """
    run_dir = settings.run_dir
    with ExitStack() as stack:
        stack.enter_context(RunLock(run_dir))
        token = make_token(run_dir)
        stack.callback(forget_token, run_dir)
        progress = LiveView(settings.run.name, engine_start=start_of_an_engine(settings))
        stack.enter_context(logged(run_dir, "launcher"))
        progress.doing("starting Ray" if settings.cluster.address is None else "joining Ray")
        cluster = RayCluster(settings, run_id(run_dir))
        cluster.__enter__()
        stack.callback(_sweep_here, cluster, settings)  # after the cluster is left, and only if it was joined
        stack.push(cluster)
        settings = cluster.config
        progress.say(cluster.hardware)
        context = Context(settings, plan(settings), cluster, ProcessList(run_dir), progress.say)
        stack.callback(_end_all, context)
        signals.check()
        with signals.raising():
            asyncio.run(take_over(cluster, settings, progress.say))
        _end_all(context)
        if examine is not None:
            with signals.raising():
                examine(cluster, progress.console)
        telemetry = metrics_server(settings, "launcher", settings.telemetry.port, context.processes.targets)
        telemetry.record({"run_failed": 0})
        stack.callback(telemetry.close)
        stack.callback(_empty_discovery, context, telemetry)
        stack.enter_context(progress)
        try:
            yield Service(context, progress, telemetry, token, resume, from_step)
        except StoppedAtOnce:
            raise
        except Exception:
            _show_failure(context, progress, telemetry)
            raise
        finally:
            with signals.unheard():
                stack.close()


def _show_failure(context: Context, progress: LiveView, telemetry: Telemetry) -> None:
    """Let a Prometheus that scrapes this launcher see that the run has failed. Its processes have ended before."""
    context.cluster.end_all()
    telemetry.record({"run_failed": 1})
    if wait_s := telemetry.scrapes.next_within_s():
        progress.say(
            f"the run has failed; waiting up to {wait_s:.0f} s until Prometheus has seen it (Ctrl-C: no longer)"
        )
        with suppress(KeyboardInterrupt), signals.raising():
            telemetry.scrapes.wait(wait_s)


def _empty_discovery(context: Context, telemetry: Telemetry) -> None:
    """Let a Prometheus with discovery over HTTP get the empty list: the last one that it gets stays with it."""
    if wait_s := telemetry.discoveries.next_within_s():
        context.cluster.end_all()
        context.processes.close()
        telemetry.discoveries.wait(wait_s)


def _end_all(context: Context) -> None:
    """End every process of the run, and remove its files from shared memory."""
    context.cluster.end_all()
    context.cluster.on_other_hosts(sweep, context.tree)
    _sweep_here(context.cluster, context.settings)
    context.processes.close()


def _sweep_here(cluster: RayCluster, settings: Config) -> None:
    # A call to a half-lost Ray waits for a minute, and other hosts may still need the published versions.
    (wiring.sweep_here if cluster.is_broken else wiring.sweep)(settings)


class Parts(NamedTuple):
    """All parts of one start of the run."""

    redis: RedisSupervisor | None
    learner: LearnerSupervisor
    actors: ActorSupervisor
    statuses: StatusLoop
    commands: Commands


class Service:
    """Runs all parts until every step is done, and starts all of them again when the learner's host is lost."""

    def __init__(
        self,
        context: Context,
        progress: LiveView,
        telemetry: Telemetry,
        token: str,
        resume: bool,
        from_step: int | None,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._progress = progress
        self._telemetry = telemetry
        self._token = token
        self._resume = resume
        self._from_step = from_step
        self._signals = Signals()
        self._redis: RedisSupervisor | None = None
        self._restarts = Restarts(is_final=lambda _: False)
        self._highest_step = 0
        self._is_over = False
        """Whether all work is done, or a stop is obeyed. What fails after that changes nothing."""
        self._num_engines = context.placement.engines

    def run(self) -> int:
        """The whole run; returns the exit code.

        Raises:
            RunEnded: the cause, when the learner, the queue or all actors failed for good.
        """
        try:
            return asyncio.run(self._run())
        except StoppedAtOnce as error:
            self._note_cause(f"{STOPPED}{error}")
            raise
        except Exception as error:
            self._note_cause(f"{FAILED}{error if isinstance(error, OlmoRLError) else repr(error)}")
            raise

    def _note_cause(self, cause: str) -> None:
        log.error("%s", cause)
        note_end(self._settings.run_dir, cause)

    def _last_act(self, cause: str) -> int:
        """Called before the launcher is ended, because it hangs in a call to a lost Ray. Returns its exit code."""
        if self._is_over:
            self._show_end()
        else:
            self._note_cause(f"{FAILED}{cause}")
        wiring.sweep_here(self._settings)
        return 0 if self._is_over else 1

    async def _run(self) -> int:
        late_error: OlmoRLError | None = None
        with self._signals.heard():
            try:
                await self._live()
            except BaseExceptionGroup as group:
                error = first_cause(group)
                if not self._is_over or not isinstance(error, OlmoRLError):
                    raise error from group
                late_error = error
            except asyncio.CancelledError:
                raise self._stopped("stopped at once, without a checkpoint") from None
            finally:
                if self._redis is not None and not self._context.cluster.is_broken:
                    # A second signal at the very end skips this wait.
                    with suppress(asyncio.CancelledError):
                        await self._redis.stop()
        self._show_end()
        if late_error is not None:
            self._progress.say(f"{late_error} (at the end, when all was saved)")
        return 0

    def _show_end(self) -> None:
        """Print the summary of the run, and why it is over if it is."""
        lines = metric_lines(self._settings.run_dir)
        seconds = time.monotonic() - self._progress.started
        self._progress.close()
        self._progress.console.print(summary(lines, self._settings.run_dir, seconds))
        if found := verdict(lines, Shape.of(self._settings, self._context.placement.engines)):
            self._progress.say(found.text)
        if stale := staleness_warning(self._settings.objective, self._settings.schedule.max_lag):
            self._progress.say(stale)
        if end := finished(self._settings.run_dir):
            self._progress.say(end)

    async def _live(self) -> None:
        """Run from the start of Redis to the end of all steps. Start again when the learner's host is lost."""
        while True:
            parts: Parts | None = None
            try:
                parts = await self._start_unless_stopped()
                return await self._watch(parts)
            except BaseExceptionGroup as group:
                if parts is None or (lost := group.subgroup(HostLost)) is None:
                    raise
                self._num_engines = parts.actors.size
                if parts.statuses.latest.step > self._highest_step:
                    self._highest_step = parts.statuses.latest.step
                    self._restarts.note_work()
                await self._prepare_restart(_as_ours(first_cause(lost)))
            except ProcessLost as error:
                # At a start after a loss: a second host was lost with the first, before Ray noticed it.
                if not self._restarts.deaths:
                    raise
                await self._prepare_restart(error)

    async def _prepare_restart(self, error: OlmoRLError) -> None:
        """End all processes, to start them as `--resume` does: they know Redis by the address of a lost host."""
        if self._signals.stop_asked.is_set():
            raise self._stopped(f"{error}; stopped without a checkpoint") from error
        delay = self._restarts.after_death(error)
        if isinstance(delay, GiveUp):
            raise RunEnded(
                f"the learner lost several hosts in a row without taking a step: {error}; when there are enough hosts, "
                "--resume goes on"
            ) from error
        self._progress.say(f"{error}: everything starts again on the other hosts, from the last checkpoint")
        self._resume, self._from_step = True, None
        await asyncio.to_thread(_end_all, self._context)
        await asyncio.sleep(delay)

    # --- starting -------------------------------------------------------------------------------

    async def _start_unless_stopped(self) -> Parts:
        start, stop = asyncio.create_task(self._start()), asyncio.create_task(self._signals.stop_asked.wait())
        try:
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                self._progress.say(f"{self._signals.asked_by}: stopping; started processes end first")
                raise self._stopped("stopped while it started")
            return start.result()
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.wait([start, stop])

    def _stopped(self, how: str) -> StoppedAtOnce:
        return StoppedAtOnce(f"{how}; {self._way_on()}", self._signals.exit_code)

    def _way_on(self) -> str:
        if ledger.incarnations(RunFiles(self._settings.run_dir).ledger):
            return _GOES_ON
        return "nothing has begun: start it again, without --resume"

    async def _start(self) -> Parts:
        """Start Redis, then the orchestrator, then learner and engines in parallel."""
        context = self._context
        context.processes.add("launcher", Identity(socket.gethostname(), os.getpid(), self._telemetry.address))
        with self._progress.placing("the learner", self._settings.actors.start_deadline_s):
            places = await context.cluster.place_learner()
        if self._settings.queue.url is None:
            self._progress.doing("starting the queue")
            self._redis = RedisSupervisor(context, places[0])
            access = await self._redis.start()
        else:
            access = QueueAccess.of_recipe(self._settings.queue.url)
        self._progress.doing("reading the data and the ledger of the run")
        learner = LearnerSupervisor(context, places, access)
        actors = ActorSupervisor(context, access)
        statuses = StatusLoop(context, self._progress, self._telemetry, learner, actors)
        commands = Commands(
            learner,
            actors,
            self._signals.stop_asked,
            lambda: statuses.latest,
            lambda: self._progress.latest,
            self._progress.say,
        )
        if alone := self._settings.cluster.address is None:
            # On one machine places are free at once, and engines take longest to start.
            await actors.place(self._num_engines)
            actors.load()
        for note in (await learner.open(self._resume, self._from_step)).notes:
            self._progress.say(note)
        note_end(self._settings.run_dir, None)
        await statuses.release_earlier_actors()
        # Actors of an earlier start were told to leave by name, and the actors of this start have the same names.
        await (learner.pause() if context.paused else learner.resume())
        if not alone:
            await self._place_engines(learner, actors)
        self._progress.say(
            f"starting {context.placement.ranks} learner rank(s) and {self._num_engines} engine(s); "
            f"logs are in {self._settings.run_dir / 'logs'}"
        )
        if crowding := context.placement.crowding(self._settings):
            self._progress.say(crowding)
        if stale := staleness_warning(self._settings.objective, self._settings.schedule.max_lag):
            self._progress.say(stale)
        return Parts(self._redis, learner, actors, statuses, commands)

    async def _place_engines(self, learner: LearnerSupervisor, actors: ActorSupervisor) -> None:
        attending = asyncio.create_task(self._attend(learner))
        try:
            with self._progress.placing(f"{self._num_engines} engine(s)", self._settings.actors.start_deadline_s):
                await actors.place(self._num_engines)
        finally:
            attending.cancel()
            await asyncio.wait([attending])

    async def _attend(self, learner: LearnerSupervisor) -> None:
        """Tell the orchestrator that a launcher looks after the run, while the launcher waits for places."""
        while True:
            with suppress(ProcessLost, DeadlinePassed):
                await learner.call("attend", timeout_s=self._settings.supervision.deadlines.answer_s)
            await asyncio.sleep(_ATTEND_S)

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self, parts: Parts) -> None:
        async with self._endpoint(parts.commands), asyncio.TaskGroup() as tasks:
            standing = [tasks.create_task(parts.statuses.run()), tasks.create_task(parts.actors.supervise())]
            standing.append(tasks.create_task(self._obey_stop(parts)))
            standing.append(tasks.create_task(self._context.cluster.watch(self._last_act)))
            if (bounds := self._settings.actors.autoscale) is not None:
                autoscaler = Autoscaler(bounds, Shape.of(self._settings, self._context.placement.engines))
                asked = (parts.statuses, parts.actors, parts.commands.resize, self._progress.say)
                standing.append(tasks.create_task(follow(autoscaler, *asked)))
            if parts.redis is not None:
                standing.append(tasks.create_task(parts.redis.supervise()))
            reason = await parts.learner.supervise()
            if reason == STOP_ASKED:
                reason = f"{STOPPED}{self._signals.asked_by}, with a checkpoint; {_GOES_ON}"
            note_end(self._settings.run_dir, reason)
            self._is_over = True
            self._context.cluster.let_go()
            await parts.actors.stop(self._settings.supervision.deadlines.stop_s / 2)
            for task in standing:
                task.cancel()

    @asynccontextmanager
    async def _endpoint(self, commands: Commands) -> AsyncIterator[None]:
        settings = self._settings
        endpoint = ControlEndpoint(settings.run_dir, wiring.own_address(settings), self._token, commands.table())
        try:
            await endpoint.start()
            yield
        finally:
            await endpoint.stop()

    async def _obey_stop(self, parts: Parts) -> None:
        await self._signals.stop_asked.wait()
        parts.actors.stopping = True
        self._context.cluster.hold(self._settings.supervision.deadlines.checkpoint_s)
        if parts.learner.is_fresh:
            # The first step may have been taken since the last status.
            with suppress(ProcessLost, DeadlinePassed, TimeoutError):
                parts.statuses.show(await asyncio.wait_for(parts.statuses.update(), _LAST_STATUS_S))
        if parts.learner.is_fresh:
            self._progress.say(f"{self._signals.asked_by}: stopping; no step was taken since the start")
            raise self._stopped("stopped before a step was taken, so there is no new checkpoint")
        asked_by = self._signals.asked_by
        self._progress.say(f"{asked_by}: stopping: the micro-batch ends, then a checkpoint is written (again: at once)")
        await parts.learner.stop()


def _as_ours(error: BaseException) -> OlmoRLError:
    assert isinstance(error, OlmoRLError)
    return error
