"""Counting the draws where they are, whatever happened to the queue meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from olmorl.errors import RunEnded
from olmorl.learner.books import Books
from olmorl.learner.evaluation import Evaluator
from olmorl.learner.orders import Orders
from olmorl.learner.pipeline import Pipeline
from olmorl.ports import Counts, Queue

log = logging.getLogger(__name__)
T = TypeVar("T")
DESCRIBE_S = 10.0
"""How long it may take to say where everything is, when a deadline has passed."""


class Census:
    """A queue is counted only once it agrees with the ledger: after every start of it the two are compared.

    The caller makes one call at a time, as with `Books`.
    """

    def __init__(
        self, queue: Queue, epoch: str, books: Books, pipeline: Pipeline, evaluator: Evaluator, orders: Orders
    ) -> None:
        """`epoch` is the queue's when the books were opened."""
        self._queue = queue
        self._books = books
        self._pipeline = pipeline
        self._evaluator = evaluator
        self._orders = orders
        self.epoch = epoch
        """Of the queue when it last was compared: what was taken in an earlier one may not be there any more."""

    async def counts(self) -> tuple[Counts, int]:
        """The queue's counts, and the draws in flight.

        Raises:
            RunEnded: they do not add up.
        """
        return await self._agreed(self._books.counts)

    async def evaluation(self) -> None:
        """Have the evaluation collect and count its answers.

        Raises:
            RunEnded: they do not add up.
        """
        await self._agreed(partial(self._evaluator.collect, self._orders.paused))

    async def _agreed(self, count: Callable[[], Awaitable[T]]) -> T:
        while True:
            epoch = await self._queue.epoch()
            if epoch != self.epoch:
                await self._compare()
                self.epoch = epoch
            try:
                return await count()
            except RunEnded:
                # Perhaps of a queue that started anew since the line above.
                if await self._queue.epoch() == epoch:
                    raise

    async def _compare(self) -> None:
        found = await self._pipeline.reconcile()
        await self._evaluator.ask_again()
        await self._orders.repeat()
        log.warning(
            "the queue started anew: %d draws were lost and are queued once more, %d had come back and are withdrawn, "
            "%d results had come back and are dropped",
            *(len(found.lost), len(found.withdrawn), len(found.leftovers)),
        )

    async def describe(self, turn: asyncio.Lock) -> str:
        """Where everything is, in words; in turn, unless whoever has the turn hangs."""
        try:
            async with asyncio.timeout(DESCRIBE_S), turn:
                return await self._describe()
        except TimeoutError:
            return "and the assembler itself is held up, by its disk or by the queue"

    async def _describe(self) -> str:
        counts, _ = await self.counts()
        actors = ", ".join(await self._queue.statuses()) or "none"
        return (
            f"{self._pipeline.num_ready} groups are ready; of the prompts {counts.queued} are queued, "
            f"{counts.leased} with actors, {counts.results} back; actors heard of: {actors}"
            + (f"; {self._pipeline.failures}" if self._pipeline.failures else "")
        )
