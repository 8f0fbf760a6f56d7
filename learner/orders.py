"""What people, and the launcher for them, ask of a run while it runs."""

from __future__ import annotations

import asyncio

from olmorl.learner.bell import Bell
from olmorl.learner.waiting import Waits
from olmorl.ports import EVERYONE, Queue


class Orders:
    """A stop is final; a pause holds until it is taken back. Nothing in hand is lost by either.

    The last word holds: while Redis is away, orders wait for it in turn.
    """

    def __init__(self, queue: Queue, waits: Waits, bell: Bell) -> None:
        self._queue = queue
        self._waits = waits
        self._bell = bell
        self._turn = asyncio.Lock()
        self._pausing = False
        """What people wish: `paused` until actors have heard that they may go on."""
        self.stopping = False

    @property
    def drawing(self) -> bool:
        """Whether prompts may be drawn."""
        return not self.stopping and not self.paused

    @property
    def paused(self) -> bool:
        """Whether actors start nothing."""
        return self._waits.paused

    def stop(self) -> None:
        """Draw no more, and let the learner end after its current micro-batch, with a checkpoint."""
        self.stopping = True
        self._bell.ring()

    async def pause(self) -> None:
        """Draw and lease no more; what actors have in hand is finished, and trained as far as it fills batches."""
        self._pausing = self._waits.paused = True
        self._bell.ring()
        await self.repeat()

    async def resume(self) -> None:
        """Go on after a pause."""
        self._pausing = False
        await self.repeat()

    async def repeat(self) -> None:
        """Say to everyone what holds, once more if the queue may have lost it."""
        async with self._turn:
            await self._queue.set_control(EVERYONE, "pause" if self._pausing else "run")
            self._waits.paused = self._pausing
            self._bell.ring()

    async def bury(self, owner: str) -> None:
        """The actor `owner` is dead: its prompts go elsewhere now, and should it live all the same, it has to leave."""
        await self._queue.set_control(owner, "drain")
        await self._queue.release(owner)
