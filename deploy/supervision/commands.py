"""The commands of a running service, by the names that `olmorl-ctl` uses."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from olmorl.deploy.control.endpoint import Command
from olmorl.deploy.supervision.actor_supervisor import ActorSupervisor
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.supervision.policies import POLL_S
from olmorl.deploy.view.dashboard import RunView
from olmorl.deploy.view.live_view import Status
from olmorl.errors import DeadlinePassed, ProcessLost, UserError
from olmorl.learner.orchestrator.changes import describe
from olmorl.messages import Wait

_SAVE_DEADLINE_S = 3600.0
_CHANGE_DEADLINE_S = 540.0
_READ_DEADLINE_S = 60.0


class Commands:
    """Each command answers with its effect, present or future."""

    def __init__(
        self,
        learner: LearnerSupervisor,
        actors: ActorSupervisor,
        stop_asked: asyncio.Event,
        latest_status: Callable[[], Status],
        latest_view: Callable[[], RunView],
        say: Callable[[str], None],
    ) -> None:
        self._learner = learner
        self._supervisor = actors
        self._stop_asked = stop_asked
        self._latest_status = latest_status
        self._latest_view = latest_view
        self._say = say

    def table(self) -> Mapping[str, Command]:
        """Every command by its name."""
        return {
            "status": self._status,
            "view": self._view,
            "actors": self._actors,
            "drain": self._drain,
            "pause": self._pause,
            "resume": self._resume,
            "checkpoint": self._checkpoint,
            "set": self._set,
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
            "actors": self._supervisor.describe(status.actors),
            "verdict": status.verdict.fields() if status.verdict else None,
            "waits": [wait.fields() for wait in self._waits()],
        }

    async def _view(self) -> Any:
        state = "stopping" if self._stop_asked.is_set() else self._learner.state
        return msgspec.to_builtins(replace(self._latest_view(), state=state))

    def _waits(self) -> list[Wait]:
        return [*(self._learner.waits() or self._latest_status().waits), *self._supervisor.waits()]

    async def resize(self, count: int, who: str) -> None:
        """Have `count` actors, and note in the ledger who asked for them. Raises ResourceError as the supervisor."""
        before = self._supervisor.size
        await self._supervisor.resize(count)
        if count == before:
            return
        self._say(f"{count} actor(s) in place of {before}, by {who}")
        while True:
            with suppress(ProcessLost, DeadlinePassed):
                await self._learner.call("resized", before, count, who, timeout_s=_CHANGE_DEADLINE_S)
                return
            await asyncio.sleep(POLL_S)  # the learner starts again

    async def _actors(self, count: int, who: str) -> dict[str, Any]:
        if not isinstance(count, int) or count < 1:
            raise UserError(f"--count {count}: a run needs at least one actor; to stop it for a while, use pause")
        await self.resize(count, who)
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

    async def _set(self, key: str, value: Any, who: str) -> dict[str, Any]:
        change = await self._learner.call("change", key, value, who, timeout_s=_CHANGE_DEADLINE_S)
        if change is None:
            return {"message": f"{key} is {value} already", "step": None}
        self._say(f"changed: {describe(change)}")
        return {"message": describe(change), "step": change.step}

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
