"""The rules of supervision: when a process counts as lost, when it starts again, and when it does not.

process          sign of life                       its deadline, in `supervision`   then
actor            heartbeat in the queue, Ray        heartbeat_s                      it starts again
learner rank     pulse to the orchestrator, Ray     answer_s                         the learner starts again
learner step     its report                         step_s                           the learner starts again
orchestrator     answers to the launcher, Ray       answer_s                         the learner starts again
embedded Redis   answers to its process             answer_s                         it starts again on its file
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Any

from olmorl import deadlines
from olmorl.config import Config
from olmorl.config import Supervision as Settings
from olmorl.deploy.cluster.placement import Placement
from olmorl.deploy.cluster.ray_cluster import RayCluster
from olmorl.deploy.cluster.remote_process import Identity, RemoteProcess
from olmorl.deploy.supervision.process_list import ProcessList
from olmorl.errors import DeadlinePassed, OlmoRLError, ProcessLost, ResourceError, UserError, is_passing
from olmorl.failed_start import same
from olmorl.messages import Wait

POLL_S = 2.0
FIRST_FAILURES = 3
"""Failed prompts in a row at the first report."""
LONGEST_GAP_S = 3.0
"""The longest gap between two status answers. After a longer one every process gets its whole deadline again."""


@dataclass
class Context:
    """The state that all supervisors of a run share. It outlives every restart."""

    settings: Config
    placement: Placement
    cluster: RayCluster
    processes: ProcessList
    say: Callable[[str], None]
    """Tells people what happened."""
    paused: bool = False
    """Whether people have paused the run. Every start of the learner is then paused, until they resume it."""

    @property
    def tree(self) -> dict[str, Any]:
        """The recipe as plain data, for another process."""
        return self.settings.model_dump(mode="json")

    @property
    def supervision(self) -> Settings:
        return self.settings.supervision


class GiveUp(Enum):
    """The reasons for which a process is not started again."""

    FINAL_ERROR = auto()
    """Its error would happen again."""
    SAME_ERROR = auto()
    """Two starts in a row failed with the same error."""
    TOO_OFTEN = auto()
    """It died too often in a row without any work."""


class Restarts:
    """Decides when a process starts again: at once after its first death, then later each time, then never.

    Work in between starts the count again.

    Args:
        is_final: whether an error would happen again at the next start.
    """

    def __init__(self, is_final: Callable[[OlmoRLError], bool]) -> None:
        self._is_final = is_final
        self._has_worked = False
        self._deaths_in_a_row = 0
        self._start_error = ""
        self.deaths = 0
        """All deaths of the process."""

    def note_work(self) -> None:
        """The process has done some work since it started."""
        self._has_worked = True

    def after_death(self, error: OlmoRLError, start_error: str = "") -> float | GiveUp:
        """Seconds until the next start, or why there is none.

        Args:
            start_error: the error of the start. If two starts in a row have the same one, there is no third start.
        """
        worked, self._has_worked = self._has_worked, False
        repeated = not worked and same(start_error, self._start_error)
        self.deaths += 1
        self._deaths_in_a_row = 1 if worked else self._deaths_in_a_row + 1
        self._start_error = start_error
        if self._is_final(error):
            return GiveUp.FINAL_ERROR
        if repeated:
            return GiveUp.SAME_ERROR
        if self._deaths_in_a_row > deadlines.MOST_RESTARTS:
            return GiveUp.TOO_OFTEN
        if self._deaths_in_a_row == 1:
            return 0.0
        pause_s = deadlines.RESTART_PAUSE_S * 2.0 ** (self._deaths_in_a_row - 2)
        return min(deadlines.LONGEST_RESTART_PAUSE_S, pause_s)


class Heartbeats:
    """How long each process has been silent. Time in which no heartbeat could be read does not count."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, float]] = {}
        self._read_at = -inf

    def note(self, beats: Mapping[str, object], now: float) -> None:
        """The heartbeats at time `now` (s); a beat that differs from the last one is a sign of life."""
        if now - self._read_at > LONGEST_GAP_S:
            self._last.clear()
        self._read_at = now
        last = self._last
        self._last = {
            name: last[name] if name in last and last[name][0] == beat else (beat, now) for name, beat in beats.items()
        }

    def silent_s(self, name: str) -> float:
        """How long `name` had been silent when heartbeats were last read; 0 for an unknown name."""
        return self._read_at - self._last[name][1] if name in self._last else 0.0


class LateWaits:
    """Reports each wait once, when half of its deadline is over; an urgent wait at once."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()
        """Name and owner of each wait."""

    def report(self, waits: Sequence[Wait]) -> list[str]:
        """A line for each wait that is late now and was not before."""
        late = {
            (wait.what, wait.owner_text): wait for wait in waits if wait.urgent or 2 * wait.waited_s > wait.deadline_s
        }
        new = [wait for key, wait in late.items() if key not in self._reported]
        self._reported = set(late)
        return [
            f"waiting for {wait.what}, which {wait.owner_text} owns: {wait.waited_s:.0f} of {wait.deadline_s:.0f} s"
            for wait in new
        ]


class FailedPrompts:
    """Reports prompts that fail in a row: early, then each time that there are twice as many."""

    def __init__(self) -> None:
        self._next = FIRST_FAILURES

    def report(self, in_a_row: int, what: str) -> str:
        """`what` when it is time for a report, else nothing."""
        if in_a_row < FIRST_FAILURES:
            self._next = FIRST_FAILURES
        if in_a_row < self._next:
            return ""
        while self._next <= in_a_row:
            self._next *= 2
        return what


class NoActorWatch:
    """Measures how long no actor has worked.

    Before the first actor works, each start has its own deadline. Later the limit is the time of two starts.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since = time.monotonic()
        self._read_at = -inf
        self._longest_start_s = 0.0
        self._any_has_worked = False

    def note_heartbeats(self) -> None:
        """The heartbeats of all actors are known."""
        self._read_at = time.monotonic()

    @property
    def knows(self) -> bool:
        """Whether heartbeats are known. They are not while an orchestrator starts, and after a stop of the launcher."""
        return time.monotonic() - self._read_at < LONGEST_GAP_S

    def note_start(self, start_s: float) -> None:
        """An actor works, after a start that took `start_s`."""
        self._any_has_worked, self._longest_start_s = True, max(self._longest_start_s, start_s)

    def too_long_s(self, any_works: bool) -> float:
        """How long no actor has worked, once that is too long; else 0."""
        if any_works or not self.knows:
            self._since = time.monotonic()
        idle_s = time.monotonic() - self._since
        too_long = idle_s > max(self._limit_s, 2 * self._longest_start_s)
        return idle_s if self._any_has_worked and too_long else 0.0


def is_final(error: OlmoRLError) -> bool:
    """Whether another start cannot succeed."""
    return not is_passing(error)


def is_mistake(error: OlmoRLError) -> bool:
    """Whether people have to mend it first. A missing resource (a place, a port, room on a disk) may come back."""
    return isinstance(error, UserError) and not isinstance(error, ResourceError)


async def wait_for_start(process: RemoteProcess, deadline_s: float) -> Identity:
    """Where a process runs, once it has started.

    Raises:
        ProcessLost: it has not started within `deadline_s`, and has been killed.
    """
    try:
        identity: Identity = await process.call("identity", timeout_s=deadline_s)
    except DeadlinePassed:
        process.kill()
        raise ProcessLost(f"{process.name} has not started within {deadline_s:g} s") from None
    return identity


async def poll(process: RemoteProcess, question: str, deadline_s: float) -> AsyncIterator[Any]:
    """Ask a process repeatedly, and yield its answers. Without an answer in time the process is killed.

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
        await asyncio.sleep(POLL_S)
