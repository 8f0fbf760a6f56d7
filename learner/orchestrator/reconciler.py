"""Counts the draws in their places, also after the queue was restarted and lost writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from olmorl.errors import QueueFull, RunEnded
from olmorl.learner.orchestrator.batcher import Batcher
from olmorl.learner.orchestrator.draw_lifecycle import DrawLifecycle
from olmorl.learner.orchestrator.evaluation import Evaluator
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.messages import Version
from olmorl.ports import Counts, Queue

log = logging.getLogger(__name__)
T = TypeVar("T")
DESCRIBE_S = 10.0
"""Time for `describe`."""


class Reconciler:
    """Counts the queue only after it agrees with the ledger. Compares the two after every restart of the queue.

    Call its methods inside `DrawLifecycle.exclusive`; `describe` enters it itself.
    """

    def __init__(
        self,
        queue: Queue,
        epoch: str,
        lifecycle: DrawLifecycle,
        batcher: Batcher,
        evaluator: Evaluator,
        control: RunControl,
    ) -> None:
        """`epoch` is the queue's when `lifecycle` was opened."""
        self._queue = queue
        self._lifecycle = lifecycle
        self._batcher = batcher
        self._evaluator = evaluator
        self._control = control
        self.epoch = epoch
        """The queue's at the last comparison. Results that were taken in an earlier epoch may be lost."""

    async def counts(self) -> tuple[Counts, int]:
        """The queue's counts, and the number of draws in flight.

        Raises:
            RunEnded: they do not add up.
        """
        return await self._reconciled(self._lifecycle.counts)

    async def draw(self, version: Version, done: int) -> None:
        """Draw for the steps after `done`.

        A restarted queue may be full of ended draws that came back. It is compared first then, and the next call queues
        what found no room.

        Raises:
            QueueFull: the queue has no room, and was not restarted.
        """
        try:
            await self._batcher.draw(version, done)
        except QueueFull:
            if await self._queue.epoch() == self.epoch:
                raise
            await self.counts()

    async def collect_evaluation(self) -> None:
        """Collect and count the answers of the evaluation.

        Raises:
            RunEnded: they do not add up.
        """
        await self._reconciled(partial(self._evaluator.collect, self._control.paused))

    async def _reconciled(self, count: Callable[[], Awaitable[T]]) -> T:
        while True:
            epoch = await self._queue.epoch()
            if epoch != self.epoch:
                await self._reconcile()
                self.epoch = epoch
            try:
                return await count()
            except RunEnded:
                # The queue may have been restarted after its epoch was read.
                if await self._queue.epoch() == epoch:
                    raise

    async def _reconcile(self) -> None:
        found = await self._batcher.reconcile()
        await self._evaluator.restart_rounds()
        await self._control.repeat()
        log.warning(
            "the queue was restarted: %d draws were lost and are queued once more, %d had come back and are withdrawn, "
            "%d results had come back and are dropped",
            *(len(found.lost), len(found.withdrawn), len(found.leftovers)),
        )

    async def describe(self) -> str:
        """The places of all draws in words, or a note that the orchestrator itself is blocked."""
        try:
            async with asyncio.timeout(DESCRIBE_S), self._lifecycle.exclusive():
                return await self._describe()
        except TimeoutError:
            return "and the orchestrator itself waits for its disk or for the queue"

    async def _describe(self) -> str:
        counts, _ = await self.counts()
        actors = ", ".join(await self._queue.statuses()) or "none"
        return (
            f"{self._batcher.num_ready} groups are ready; of the prompts {counts.queued} are queued, "
            f"{counts.leased} with actors, {counts.results} back; actors with heartbeats: {actors}"
            + (f"; {self._batcher.streaks.failures}" if self._batcher.streaks.failures else "")
        )
