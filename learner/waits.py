"""Lists the waits of the learner and the orchestrator, with owners and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from olmorl.clock import Clock, within
from olmorl.errors import RunEnded
from olmorl.messages import Owner, Stage, Wait


class _Begun(NamedTuple):
    at: float
    owner: Owner
    deadline_s: float
    urgent: bool
    stage: Stage | None


class Waits:
    """Every wait is listed with its owner and its deadline. A pause stops the deadlines of `until`.

    Every change and the end of the background work wake all waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: dict[str, _Begun] = {}
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self.paused = False

    def follow(self, work: asyncio.Task[None]) -> None:
        """Wake all waits also when `work` ends, and raise its error in them."""
        self._work = work
        self.notify()

    def notify(self) -> None:
        """Wake all waits: something changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait for the next change.

        Raises:
            RunEnded: the background work was cancelled.
            OlmoRLError: another error that ended the background work.
        """
        changed, work = asyncio.create_task(self._changed.wait()), self._work
        try:
            await asyncio.wait([changed, work] if work else [changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if work and work.cancelled():
            raise RunEnded("the orchestrator was stopped")
        if work and work.done():
            work.result()

    async def until(
        self, ready: Callable[[], bool], what: str, owner: Owner, limit_s: float, stage: Stage | None = None
    ) -> None:
        """Wait until `ready` is true. A pause stops the deadline; after the pause the wait gets its whole time again.

        Raises:
            DeadlinePassed: it was not true within `limit_s`.
            OlmoRLError: the error that ended the background work.
        """
        while not ready():
            if self.paused:
                await self.change()
                continue
            self.begin(what, owner, limit_s, stage=stage)
            try:
                async with within(limit_s, f"{what}, which the {owner} owns"):
                    while not ready() and not self.paused:
                        await self.change()
            finally:
                self.end(what)

    def begin(
        self, what: str, owner: Owner, deadline_s: float, *, urgent: bool = False, stage: Stage | None = None
    ) -> None:
        """Put a wait on the list. Several waits for the same are listed once."""
        self._begun.setdefault(what, _Begun(self._clock.now(), owner, deadline_s, urgent, stage))

    def end(self, what: str) -> None:
        """Take a wait off the list."""
        self._begun.pop(what, None)

    def current(self) -> list[Wait]:
        """The waits that have not ended."""
        now = self._clock.now()
        return [
            Wait(what, begun.owner, now - begun.at, begun.deadline_s, begun.urgent, stage=begun.stage)
            for what, begun in self._begun.items()
        ]
