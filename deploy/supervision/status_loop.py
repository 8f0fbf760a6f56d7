"""Reads the status of the run repeatedly, for the supervisors and for people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from olmorl.deploy.processes.prometheus import Telemetry
from olmorl.deploy.supervision.actor_supervisor import ActorSupervisor
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.supervision.policies import Context, FailedPrompts, LateWaits
from olmorl.deploy.supervision.recipe_history import KeptRecipe
from olmorl.deploy.supervision.run_health import RunHealth
from olmorl.deploy.view.live_view import LiveView, Status
from olmorl.deploy.view.verdict import Lines, Shape, VerdictWindow
from olmorl.errors import DeadlinePassed, ProcessLost
from olmorl.messages import Wait

_PAUSE_S = 0.5
_RELEASE_PAUSE_S = 0.02


class StatusLoop:
    """Both supervisors get every status; people see every metric line once."""

    def __init__(
        self,
        context: Context,
        progress: LiveView,
        telemetry: Telemetry,
        learner: LearnerSupervisor,
        actors: ActorSupervisor,
    ) -> None:
        self._context = context
        self._progress = progress
        self._telemetry = telemetry
        self._learner = learner
        self._actors = actors
        self._late_waits = LateWaits()
        self._failed_prompts = FailedPrompts()
        self._recipe = KeptRecipe(context.settings)
        self._health = RunHealth(context.settings, time.monotonic())
        self._verdicts = VerdictWindow(Shape.of(context.settings, context.placement.engines))
        self._dead_actors: list[str] = []
        """Actors that the queue knows and no slot has."""
        self.latest = Status(step=0, steps=0)

    async def run(self) -> None:
        """Read and show the status until cancelled."""
        while True:
            if waits := self._learner.waits():
                self._report_late(waits)
            else:
                # The supervisor of the silent process deals with it.
                with suppress(ProcessLost, DeadlinePassed):
                    status = await self.update()
                    self.show(status)
                    await asyncio.to_thread(self._recipe.write_when_due, bool(status.lines))
                    self._telemetry.record(await asyncio.to_thread(self._health.disk, status.step, time.monotonic()))
            self._telemetry.record(self._health.progress(time.monotonic(), self._context.paused))
            await asyncio.sleep(_PAUSE_S)

    @property
    def recent_lines(self) -> Lines:
        """The newest metric lines, oldest first."""
        return self._verdicts.lines

    async def update(self) -> Status:
        """Read the status once, and pass it to the supervisors."""
        status = await self._learner.status(self._dead_actors)
        now = time.monotonic()
        self._dead_actors = self._actors.note_heartbeats(status.actors, now)
        self._learner.note_status(status, now)
        self._verdicts.add(status.lines)
        self.latest = replace(status, verdict=self._verdicts.current(now))
        return self.latest

    async def release_earlier_actors(self) -> None:
        """Release the leases of actors of an earlier start, which ended with it, before they expire."""
        await self.update()
        give_up_at = time.monotonic() + self._context.supervision.deadlines.answer_s
        while self._dead_actors and time.monotonic() < give_up_at:  # those that are left expire
            await asyncio.sleep(_RELEASE_PAUSE_S)
            await self.update()

    def show(self, status: Status) -> None:
        """Show a status to people and to Prometheus."""
        self._report_late(status.waits)
        if news := self._failed_prompts.report(*status.failures):
            self._progress.say(news)
        self._progress.show(status, self._actors.describe(status.actors))
        self._learner.note_shown(status)
        self._context.processes.mend()
        self._health.note(status.step, time.monotonic(), status.checkpoint_every)
        self._telemetry.record_verdict(status.verdict)
        self._telemetry.record(
            {
                "actors_wanted": self._actors.size,
                "actors_running": sum(slot.process is not None for slot in self._actors.slots),
                "actors_serving": self._actors.num_serving,
                "actors_quarantined": self._actors.num_quarantined,
                "engine_devices": self._context.placement.gpus_per_engine if self._context.placement.on_gpu else 1,
                "actor_deaths_total": self._actors.num_deaths,
                "learner_restarts_total": self._learner.num_restarts,
                "prompts_queued": status.queued,
                "prompts_leased": status.leased,
                "results_waiting": status.results,
            }
        )

    def _report_late(self, waits: Sequence[Wait]) -> None:
        for line in self._late_waits.report([*waits, *self._actors.waits()]):
            self._progress.say(line)
