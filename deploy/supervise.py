"""How processes are kept alive: who is lost, who is started again and when, who is given up.

process          sign of life                       its deadline, in `supervision`   then
actor            heartbeat in the queue, Ray        heartbeat_deadline_s             it starts again (`fleet`)
learner rank     pulse to the assembler, Ray        answer_deadline_s                the learner starts again
learner step     its report                         step_deadline_s                  the learner starts again
assembler        answers to the launcher, Ray       answer_deadline_s                the learner starts again
embedded Redis   answers to its host, that to us    answer_deadline_s                it starts again on its file
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from olmorl.config import Config
from olmorl.config import Supervision as Settings
from olmorl.deploy.cluster import Cluster
from olmorl.deploy.plan import Plan
from olmorl.deploy.process import Identity, Process
from olmorl.deploy.roster import Roster
from olmorl.errors import DeadlinePassed, EngineDied, OlmoRLError, ProcessLost, ResourceError, UserError, WeightError
from olmorl.learner.waiting import Wait

ASK_AGAIN_S = 2.0
LONGEST_GAP_S = 3.0
"""Between two looks at the heartbeats; after a longer one every process gets its whole deadline again."""


@dataclass
class Context:
    """What every supervisor works with."""

    settings: Config
    plan: Plan
    cluster: Cluster
    roster: Roster
    say: Callable[[str], None]
    """Tells people what happened."""

    @property
    def tree(self) -> dict[str, Any]:
        """The recipe as plain data, for another process."""
        return self.settings.model_dump(mode="json")

    @property
    def supervision(self) -> Settings:
        return self.settings.supervision


class Restarts:
    """A process that dies again and again without having worked in between is started later and later, then never."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._in_a_row = 0
        self.deaths = 0
        """In all."""

    def after_death(self, worked: bool) -> float | None:
        """Seconds until the next start, or None when there is to be none; `worked`: it got something done."""
        self.deaths += 1
        self._in_a_row = 1 if worked else self._in_a_row + 1
        if self._in_a_row > self._settings.restarts:
            return None
        if self._in_a_row == 1:
            return 0.0
        return min(self._settings.longest_backoff_s, self._settings.backoff_s * 2.0 ** (self._in_a_row - 2))


class Heartbeats:
    """Silence counts only while it could have been broken: not while nobody looked, or the queue was away."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, float]] = {}
        self._looked_at = float("-inf")

    def heard(self, beats: Mapping[str, object], now: float) -> None:
        """Look at time `now` (s); a beat that differs from the last one is a sign of life."""
        if now - self._looked_at > LONGEST_GAP_S:
            self._last.clear()
        self._looked_at = now
        last = self._last
        self._last = {
            name: last[name] if name in last and last[name][0] == beat else (beat, now) for name, beat in beats.items()
        }

    def silent_s(self, name: str) -> float:
        """How long `name` had been silent at the last look; 0 for one that was not heard of."""
        return self._looked_at - self._last[name][1] if name in self._last else 0.0


class Watchdog:
    """A wait that has used up half of its deadline is named once, with its owner; one that needs people is at once."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()
        """What was waited for, and by whom it is owned."""

    def look(self, waits: Sequence[Wait]) -> list[str]:
        """What there is to say of the waits that go on."""
        late = {(wait.what, wait.owner): wait for wait in waits if wait.urgent or wait.waited_s > wait.deadline_s / 2}
        new = [wait for key, wait in late.items() if key not in self._named]
        self._named = set(late)
        return [
            f"waiting for {wait.what}, which {wait.owner} owns: {wait.waited_s:.0f} of {wait.deadline_s:.0f} s"
            for wait in new
        ]


def is_passing(error: OlmoRLError) -> bool:
    """Whether another start may go better. What has a name of its own happens again, or is for people to mend."""
    return isinstance(error, (ProcessLost, EngineDied, WeightError))


def is_mistake(error: OlmoRLError | None) -> bool:
    """Whether people have to mend it first; what is not there today (a place, a port, room) may be there tomorrow."""
    return isinstance(error, UserError) and not isinstance(error, ResourceError)


async def introduced(process: Process, deadline_s: float) -> Identity:
    """Where a process that starts is, once it is there.

    Raises:
        ProcessLost: it is not there within `deadline_s`, and has been killed.
    """
    try:
        who: Identity = await process.call("who", timeout_s=deadline_s)
    except DeadlinePassed:
        process.kill()
        raise ProcessLost(f"{process.name} has not started within {deadline_s:g} s") from None
    return who


async def still_there(process: Process, question: str, deadline_s: float) -> AsyncIterator[Any]:
    """Ask a process again and again; yields its answers. One that gives none is killed, which is the end of its work.

    Raises:
        ProcessLost: it died.
    """
    while True:
        try:
            yield await process.call(question, timeout_s=deadline_s)
        except DeadlinePassed:
            cause = f"gave no sign of life for {deadline_s:g} s"
            process.kill(cause)
            raise ProcessLost(f"{process.name} {cause}") from None
        await asyncio.sleep(ASK_AGAIN_S)
