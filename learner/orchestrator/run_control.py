"""Stops, pauses and resumes a run on request, directly or through the launcher."""

from __future__ import annotations

import asyncio

from olmorl.learner.waits import Waits
from olmorl.ports import EVERYONE, Queue


class RunControl:
    """A stop is final. A pause holds until `resume`. Neither loses work that has begun.

    The newest request wins: requests wait their turn while Redis is away.
    """

    def __init__(self, queue: Queue, waits: Waits) -> None:
        self._queue = queue
        self._waits = waits
        self._turn = asyncio.Lock()
        self._wants_pause = False
        """The newest request. `paused` stays true until the actors have heard that they may continue."""
        self.stopping = False

    @property
    def drawing(self) -> bool:
        """Whether prompts may be drawn."""
        return not self.stopping and not self.paused

    @property
    def paused(self) -> bool:
        """Whether actors start no new work."""
        return self._waits.paused

    def stop(self) -> None:
        """Draw no more prompts. The learner ends after its current micro-batch, with a checkpoint."""
        self.stopping = True
        self._waits.notify()

    async def pause(self) -> None:
        """Draw and lease no more prompts. Actors finish what they have, and full batches are still trained."""
        self._wants_pause = self._waits.paused = True
        self._waits.notify()
        await self.repeat()

    async def resume(self) -> None:
        """Continue after a pause."""
        self._wants_pause = False
        await self.repeat()

    async def repeat(self) -> None:
        """Send the newest request to all actors, also after the queue may have lost it."""
        async with self._turn:
            await self._queue.set_control(EVERYONE, "pause" if self._wants_pause else "run")
            self._waits.paused = self._wants_pause
            self._waits.notify()

    async def declare_dead(self, owner: str) -> None:
        """Release the leases of the dead actor `owner`. If it still runs, it has to leave."""
        await self._queue.set_control(owner, "drain")
        await self._queue.release_dead_actor(owner)
