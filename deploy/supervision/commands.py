"""The commands of a running service, by the names that `olmorl-ctl` uses."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from olmorl.deploy.control.endpoint import Command
from olmorl.deploy.supervision.actor_supervisor import ActorSupervisor
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.view.live_view import Status
from olmorl.errors import UserError
from olmorl.messages import Wait

_SAVE_DEADLINE_S = 3600.0
_READ_DEADLINE_S = 60.0


class Commands:
    """Each command answers with its effect, present or future."""

    def __init__(
        self,
        learner: LearnerSupervisor,
        actors: ActorSupervisor,
        stop_asked: asyncio.Event,
        latest_status: Callable[[], Status],
    ) -> None:
        self._learner = learner
        self._supervisor = actors
        self._stop_asked = stop_asked
        self._latest_status = latest_status

    def table(self) -> Mapping[str, Command]:
        """Every command by its name."""
        return {
            "status": self._status,
            "actors": self._actors,
            "drain": self._drain,
            "pause": self._pause,
            "resume": self._resume,
            "checkpoint": self._checkpoint,
            "stop": self._stop,
            "dead-letters": self._dead_letters,
        }

    async def _status(self) -> dict[str, Any]:
        status = self._latest_status()
        return {
            "state": "stopping" if self._stop_asked.is_set() else self._learner.state,
            "step": status.step,
            "steps": status.steps,
            "incarnation": self._learner.incarnation,
            "learner_restarts": self._learner.num_restarts,
            "actor_deaths": self._supervisor.num_deaths,
            "queued": status.queued,
            "leased": status.leased,
            "results": status.results,
            "actors": self._list_actors(),
            "verdict": status.verdict.fields() if status.verdict else None,
            "waits": [wait.fields() for wait in self._waits()],
        }

    def _waits(self) -> list[Wait]:
        return [*(self._learner.waits() or self._latest_status().waits), *self._supervisor.waits()]

    def _list_actors(self) -> list[dict[str, Any]]:
        heard = {status.name: status for status in self._latest_status().actors}
        actors = []
        for slot in self._supervisor.slots:
            status = heard.get(slot.process.name) if slot.process else None
            said = msgspec.to_builtins(status) if status else {}
            version = str(status.version) if status and status.version else None
            state = "leaving" if slot.leaving else status.state if status else slot.state
            own = {"name": slot.name, "state": state, "version": version, "starts": slot.num_starts}
            actors.append({**said, **own, "deaths": slot.restarts.deaths, "last_cause": slot.cause})
        return actors

    async def _actors(self, count: int) -> dict[str, Any]:
        if not isinstance(count, int) or count < 1:
            raise UserError(f"--count {count}: a run needs at least one actor; to stop it for a while, use pause")
        await self._supervisor.resize(count)
        return {
            "message": f"{count} actor(s) from now on: new ones start, others leave once they are done",
            "count": count,
        }

    async def _drain(self, actor: str) -> dict[str, Any]:
        self._supervisor.drain(actor)
        return {"message": f"{actor} takes no more prompts, and leaves once its prompts are done"}

    async def _pause(self) -> dict[str, Any]:
        await self._learner.pause()
        return {"message": "nothing is drawn or leased; leased prompts are finished, and trained if they fill a batch"}

    async def _resume(self) -> dict[str, Any]:
        await self._learner.resume()
        return {"message": "the run goes on"}

    async def _checkpoint(self) -> dict[str, Any]:
        step = await self._learner.call("save", timeout_s=_SAVE_DEADLINE_S)
        return {"message": f"the checkpoint of step {step} is complete", "step": step}

    async def _stop(self) -> dict[str, Any]:
        self._stop_asked.set()
        return {"message": "the current micro-batch ends, then a checkpoint is written"}

    async def _dead_letters(self, replay: bool) -> dict[str, Any]:
        letters, replayed = await self._learner.call("dead_letters", replay, timeout_s=_READ_DEADLINE_S)
        return {
            "letters": [
                {**letter._asdict(), "payload": base64.b64encode(letter.payload).decode()} for letter in letters
            ],
            "replayed": replayed,
        }
