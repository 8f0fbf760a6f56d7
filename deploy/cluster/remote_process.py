"""Calls to processes over Ray, each with a deadline that names the process and the method."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from olmorl import codec
from olmorl.clock import within
from olmorl.errors import DeadlinePassed, OlmoRLError, ProcessLost
from olmorl.messages import Begin, StepReport, Version, Work

_log = logging.getLogger(__name__)

_IN_INIT = "error raised in its creation task"
"""Ray's message for a process whose constructor raised; its last line is the error."""
_NEWS = 300
"""Characters of Ray's message that are passed on."""


class Identity(NamedTuple):
    """Host and process id: enough to find a process, or to end it by hand."""

    host: str
    pid: int
    metrics: str = ""
    """`host:port` where Prometheus finds it."""


class RemoteProcess:
    """One process of the run on the cluster. Every call to it has a deadline, and its end has a cause."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle
        self._work: Any = None
        self._killed_for = ""

    def begin(self, method: str, *args: Any) -> None:
        """Start the call that lasts as long as the process works."""
        self._work = getattr(self.handle, method).remote(*args)

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call and wait.

        Raises:
            DeadlinePassed: no answer in time.
            ProcessLost: it died, or raised an error that is not ours.
            OlmoRLError: as the process raised it.
        """
        async with within(timeout_s, f"the answer of {self.name} to {method!r}"):
            return await self._answer(getattr(self.handle, method).remote(*args))

    async def ended(self) -> Any:
        """Wait until its work ends; returns its result, or raises its error."""
        return await self._answer(self._work)

    def kill(self, cause: str = "") -> None:
        """End it at once, even when it is stopped. `cause` is reported as the cause of its end."""
        self._killed_for = self._killed_for or cause
        ray.kill(self.handle)

    async def _answer(self, ref: Any) -> Any:
        try:
            return await ref
        except RayError as error:
            if self._killed_for and not isinstance(error, RayTaskError):  # else it has said its own cause
                raise ProcessLost(f"{self.name} {self._killed_for}") from None
            raise cause_of(error, self.name) from None


def cause_of(error: RayError, name: str) -> OlmoRLError:
    """The error that a process raised, or the news of its death, as one of ours."""
    if isinstance(error, RayTaskError):
        if isinstance(error.cause, OlmoRLError):
            return error.cause
        # The process itself goes on after the failed call, and logs nothing of it.
        _log.error("%s failed:\n%s", name, error)  # its text is the traceback
        return ProcessLost(
            f"{name} failed: {error.cause!r}; the log of its caller, such as launcher.log, has the traceback"
        )
    if isinstance(error, RayActorError):
        if _IN_INIT in str(error):
            return ProcessLost(f"{name} cannot be set up: {_news(error)}")
        return ProcessLost(f"{name} died: {_news(error)}")
    # Out of memory, no environment, a lost place, a lost answer: the first lines of Ray's message say which.
    return ProcessLost(f"{name} is lost: {type(error).__name__}: {' '.join(str(error).split())[:_NEWS]}")


def _news(error: RayActorError) -> str:
    """The last line of Ray's message, which says what happened."""
    last = str(error).strip().rpartition("\n")[2]
    return last.removeprefix("The actor is dead because ").partition(". ")[0]


class RayBatchSource:
    """The orchestrator for a learner rank, over Ray. Every call has a deadline that names the orchestrator.

    Each call carries the incarnation that the rank belongs to: a rank that outlived its group is refused.
    """

    def __init__(
        self, orchestrator: Any, incarnation: int, deadline_s: float, observe: Callable[[Mapping[str, float]], None]
    ) -> None:
        """After each answer `observe` gets the total time that this rank has waited for steps and worked on them."""
        self._orchestrator = orchestrator
        self._incarnation = incarnation
        self._deadline_s = deadline_s
        self._observe = observe
        self._answered_at: float | None = None
        self._wait_s = self._busy_s = 0.0

    async def begin(self, rank: int) -> Begin:
        begin: Begin = codec.decode(await self._call("begin", rank), Begin)
        return begin

    async def next(self, rank: int, step: int) -> Work:
        asked_at = time.monotonic()
        if self._answered_at is not None:
            self._busy_s += asked_at - self._answered_at
        # The orchestrator knows how long the wait may be; it answers in between to show that it lives.
        while (answer := await self._call("next", rank, step)) is None:
            pass
        work: Work = codec.decode(answer, Work)
        self._answered_at = time.monotonic()
        self._wait_s += self._answered_at - asked_at
        self._observe({"rank_step": step, "rank_wait_s_total": self._wait_s, "rank_busy_s_total": self._busy_s})
        return work

    async def report(self, report: StepReport) -> None:
        await self._call("report", codec.encode(report))

    async def published(self, version: Version, seconds: float) -> None:
        await self._call("published", str(version), seconds)

    async def stop_asked(self) -> bool:
        return bool(await self._call("stop_asked"))

    async def given_up(self, step: int) -> None:
        await self._call("given_up", step)

    async def saved(self, rank: int, step: int) -> None:
        await self._call("saved", rank, step)

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await getattr(self._orchestrator, method).remote(self._incarnation, *args)
        except TimeoutError:
            raise DeadlinePassed(
                f"the orchestrator did not answer {method!r} within {self._deadline_s:.0f} s "
                "(learner.batch_deadline_s, supervision.patience)"
            ) from None
        except RayError as error:
            raise cause_of(error, "the orchestrator") from None
