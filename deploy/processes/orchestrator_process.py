"""The process of the orchestrator. The ranks of its incarnation and the launcher call it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from olmorl import codec
from olmorl.actors.vllm_engine import reaper
from olmorl.clock import SystemClock
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.orphan_watch import LauncherPresence
from olmorl.deploy.processes.run_process import RunProcess, Tree
from olmorl.deploy.tracking.tracking import Environment, Tracking
from olmorl.deploy.view.dashboard import RecentSample
from olmorl.deploy.view.live_view import Status
from olmorl.deploy.view.run_history import sample_of
from olmorl.errors import OlmoRLError, ResourceError, Superseded, is_passing
from olmorl.learner.data.compat import import_tokenizers
from olmorl.learner.orchestrator.draws import Letter
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage import metrics_log
from olmorl.learner.storage.ledger_state import Changed
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import StepReport, Version
from olmorl.ports import Queue
from olmorl.run_dir import RunFiles

_LISTEN_S = 20.0
"""How long one question for a step waits for its answer."""
_MOST_LINES = 1000
"""Metric lines that are kept until a launcher shows them."""


class Opened(NamedTuple):
    """The result of opening the run for a start of the learner."""

    incarnation: int
    notes: Sequence[str]
    """Notes on the data for people."""


class NumberedLines:
    """Metric lines, numbered from 1. A line is kept until the launcher has acknowledged its number."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_LINES)
        self.newest = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep a whole line. Fields that are added to an earlier line have no step, and are not kept."""
        if "step" in line:
            self.newest += 1
            self._lines.append((self.newest, dict(line)))

    def after(self, number: int) -> list[dict[str, Any]]:
        """The lines with a higher number, oldest first."""
        return [line for each, line in self._lines if each > number]

    def acknowledge(self, number: int) -> None:
        """Drop the lines up to this number."""
        while self._lines and self._lines[0][0] <= number:
            self._lines.popleft()


class OpenRun:
    """One opening of the run. Its end cancels every call that its ranks have made."""

    def __init__(self, orchestrator: Orchestrator, queue: Queue) -> None:
        self.orchestrator = orchestrator
        self.queue = queue
        self.pulses: dict[str, float] = {}
        self.running: asyncio.Task[str] | None = None
        self._steps: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.is_closed = False
        """Whether it was closed, to be opened again."""

    async def run(self) -> str:
        """Run until the run is over, or opened again; returns why."""
        self.running = asyncio.create_task(self.orchestrator.run())
        await asyncio.wait([self.running])
        return "opened again" if self.running.cancelled() else self.running.result()

    @property
    def is_over(self) -> bool:
        return self.running is not None and self.running.done()

    async def next_step(self, rank: int, step: int) -> bytes | None:
        """The encoded message for a step; None while there is none, and the rank asks again.

        Raises:
            Superseded: the run was opened again meanwhile.
        """
        if (rank, step) not in self._steps:
            self._steps[rank, step] = asyncio.create_task(self.orchestrator.next(rank, step))
        task = self._steps[rank, step]
        await asyncio.wait([task], timeout=_LISTEN_S)
        if not task.done():
            return None
        del self._steps[rank, step]
        if task.cancelled():
            raise Superseded("the run was opened again meanwhile")
        return codec.encode(task.result())

    async def finish(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call of a rank. Raises Superseded when the run is opened again meanwhile."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        await asyncio.wait([task])
        if task.cancelled():
            raise Superseded("the run was opened again meanwhile")
        task.result()

    async def close(self) -> None:
        """Cancel everything, and leave the queue."""
        if self.is_closed:
            return
        self.is_closed = True
        tasks = [*self._steps.values(), *self._calls, *([self.running] if self.running else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.queue.close()


class OrchestratorProcess(RunProcess):
    """One orchestrator at a time: opening the run again ends the earlier one, and refuses its ranks."""

    def __init__(self, tree: Tree, access: QueueAccess, tracking: Environment) -> None:
        """`tracking`: the variables of the launcher for trackers and traces."""
        super().__init__(tree, "orchestrator")
        self._access = access
        self._tracking = Tracking(self.settings, tracking)
        self._data: Any = None
        self._clock = SystemClock()
        self._launcher = LauncherPresence(self.settings.supervision, self._clock)
        self._lines = NumberedLines()
        self._sample: RecentSample | None = None
        self._opening = False
        self._loaded = ""
        self._run: OpenRun | None = None

    async def open(self, resume: bool, from_step: int | None) -> Opened:
        """Take the run over: at its start, and again after ranks were lost. Data is read once."""
        self._opening = True
        try:
            return await self._open(resume, from_step)
        finally:
            self._opening = False
            self._launcher.note()

    async def _open(self, resume: bool, from_step: int | None) -> Opened:
        if self._run is not None:
            await self._run.close()
        if self._data is None:
            self._data = await asyncio.to_thread(self._read_data)
        self._loaded = ""
        stream, evaluations, notes = self._data
        queue = await wiring.join_queue(self.settings, self._access)
        try:
            orchestrator = await wiring.open_orchestrator(
                self.settings,
                queue,
                stream,
                evaluations,
                self._observe,
                self._observe_ended,
                resume=resume,
                from_step=from_step,
            )
        except BaseException:
            await queue.close()
            raise
        self.telemetry.restore(metrics_log.history(RunFiles(self.settings.run_dir)))
        self._run = OpenRun(orchestrator, queue)
        return Opened(orchestrator.incarnation, notes)

    def _read_data(self) -> Any:
        if self.settings.run.mode == "real":
            import_tokenizers(self.settings.model)
        return wiring.prompts(self.settings, self._note_loaded)

    def _note_loaded(self, name: str, number: int) -> None:
        self._loaded = f"reading the data: {number:,} rows of {name} so far"

    async def run(self) -> str:
        """Run until the run is over, or opened again; returns why."""
        current = self._current
        try:
            reason = await current.run()
        except OlmoRLError as error:
            if not is_passing(error):
                await self.close_tracking()
            raise
        reaper.unlink_own_semaphores()
        if not current.is_closed:
            await self.close_tracking()
        return reason

    @property
    def _current(self) -> OpenRun:
        assert self._run is not None, "opened before it is called"
        return self._run

    def _observe(self, line: Mapping[str, Any]) -> None:
        self._lines.add(line)
        self.telemetry.record_line(line)
        self._tracking.add_line(line)
        self._count_dropped()

    def _count_dropped(self) -> None:
        self.telemetry.record({"tracking_dropped_total": self._tracking.num_dropped})

    def _observe_ended(self, ended: Ended) -> None:
        self.telemetry.record_ended(ended)
        sample = sample_of(ended)
        self._tracking.add_ended(ended, sample)
        self._sample = sample or self._sample

    # --- the launcher's queries: they change nothing -------------------------------------------------

    async def status(self, after: int) -> Status:
        """The state of the run, with the metric lines after number `after`."""
        orchestrator, queue = self._current.orchestrator, self._current.queue
        progress = await orchestrator.progress()
        actors = await queue.statuses()
        return Status(
            step=progress.step,
            steps=self.settings.schedule.steps,
            lines=self._lines.after(after),
            newest_line=self._lines.newest,
            queued=progress.counts.queued,
            leased=progress.counts.leased,
            results=progress.counts.results,
            actors=sorted(actors.values(), key=lambda status: status.name),
            pulses=dict(self._current.pulses),
            waits=orchestrator.waits.current(),
            sample=self._sample,
            failures=(progress.num_failed, progress.failures),
            checkpoint_every=orchestrator.draws.settings(progress.step + 1).checkpoint.every,
        )

    async def loading(self) -> str:
        """How many rows of data a start has read."""
        return self._loaded

    # --- the launcher's commands: each may be repeated -----------------------------------------------

    async def attend(self, line: int = 0) -> Identity:
        """A launcher looks after the run, and has shown the metric lines up to number `line`."""
        self._launcher.note()
        self._lines.acknowledge(line)
        reaper.unlink_own_semaphores()  # a killed process cannot do it at its end
        return self.identity()

    async def release_leases(self, actors: Sequence[str]) -> None:
        """These actors are dead: they get no new leases, and their prompts go to other actors."""
        for actor in actors:
            await self._current.orchestrator.declare_dead(actor)

    async def close_tracking(self) -> None:
        """The run is over: its last points leave."""
        await asyncio.to_thread(self._tracking.close)
        self._count_dropped()

    async def stop(self) -> None:
        """Stop after the current micro-batch, with a checkpoint."""
        self._current.orchestrator.control.stop()

    async def pause(self) -> None:
        """Draw and lease no more."""
        await self._current.orchestrator.control.pause()

    async def resume(self) -> None:
        """Continue after a pause."""
        await self._current.orchestrator.control.resume()

    async def save(self) -> int:
        """Write a checkpoint after the current step; returns that step once it is complete."""
        return await self._current.orchestrator.save()

    async def change(self, key: str, value: Any, who: str) -> Changed | None:
        """Change a key of the configuration at a step boundary; None if it has this value already."""
        return await self._current.orchestrator.draws.change(key, value, who)

    async def resized(self, before: int, count: int, who: str) -> None:
        """The run has another number of actors."""
        await self._current.orchestrator.draws.resized(before, count, who)

    async def dead_letters(self, replay: bool) -> tuple[list[Letter], list[int]]:
        """All dead letters, and with `replay` the new draws of their rows."""
        if replay and self._current.is_over:
            raise ResourceError("the run is over: ask for a replay once it goes on (olmorl-launch --resume)")
        draws = self._current.orchestrator.draws
        letters = await draws.letters()
        return letters, await draws.replay_letters() if replay else []

    # --- a query of every process of the run ---------------------------------------------------------

    async def needed(self) -> bool:
        """Whether the learner trains, or a launcher looks after the run."""
        if self._opening:
            return True
        if self._run is None or self._run.running is None or self._run.is_over:
            return self._launcher.run_is_needed([], overdue=False)
        waits, pulses = self._run.orchestrator.waits, self._run.pulses
        overdue = waits.paused or any(wait.is_late for wait in waits.current())
        complete = len(pulses) == plan(self.settings).ranks
        return self._launcher.run_is_needed(pulses.values() if complete else [], overdue)

    # --- calls of the ranks (`BatchSource`), as bytes -------------------------------------------------

    def _of(self, incarnation: int) -> OpenRun:
        current = self._current
        if self._opening or incarnation != current.orchestrator.incarnation:
            raise Superseded(
                f"a rank of incarnation {incarnation} is superseded by incarnation {current.orchestrator.incarnation}"
            )
        return current

    async def pulse(self, incarnation: int, rank: str) -> None:
        """A rank lives."""
        if incarnation == self._current.orchestrator.incarnation:
            self._current.pulses[rank] = self._clock.now()

    async def begin(self, incarnation: int, rank: int) -> bytes:
        return codec.encode(await self._of(incarnation).orchestrator.begin(rank))

    async def next(self, incarnation: int, rank: int, step: int) -> bytes | None:
        return await self._of(incarnation).next_step(rank, step)

    async def report(self, incarnation: int, report: bytes) -> None:
        run = self._of(incarnation)
        await run.finish(run.orchestrator.report(codec.decode(report, StepReport)))

    async def published(self, incarnation: int, version: str, seconds: float) -> None:
        run = self._of(incarnation)
        await run.finish(run.orchestrator.published(Version.parse(version), seconds))

    async def stop_asked(self, incarnation: int) -> bool:
        return await self._of(incarnation).orchestrator.stop_asked()

    async def given_up(self, incarnation: int, step: int) -> None:
        await self._of(incarnation).orchestrator.given_up(step)

    async def saved(self, incarnation: int, rank: int, step: int) -> None:
        run = self._of(incarnation)
        await run.finish(run.orchestrator.saved(rank, step))
