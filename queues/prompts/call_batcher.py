"""Calls that are made at the same time share one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class CallBatcher(Generic[Call, Answer]):
    """One batch is sent at a time; calls that come meanwhile are in the next one.

    There is no background task: the first call of a batch that gets its turn sends the whole batch.

    Args:
        send: answers a batch of calls, in order; may be given a call twice when a sender was cancelled.
        limit: calls in one batch at most.
    """

    def __init__(self, send: Callable[[Sequence[Call]], Awaitable[Sequence[Answer]]], limit: int) -> None:
        self._send = send
        self._limit = limit
        self._waiting: list[tuple[Call, asyncio.Future[Answer]]] = []
        self._turn = asyncio.Lock()

    async def __call__(self, call: Call) -> Answer:
        """The answer to `call`. Raises the error of sending its batch."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        try:
            async with self._turn:
                # One turn of the loop, for calls at the same moment.
                await asyncio.sleep(0)
                while not answer.done():
                    await self._send_batch()
        finally:
            # A call whose caller was cancelled is not sent.
            self._waiting = [item for item in self._waiting if item[1] is not answer]
        return answer.result()

    async def _send_batch(self) -> None:
        batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
        try:
            answers = await self._send([call for call, _ in batch])
        except asyncio.CancelledError:
            self._waiting = [*batch, *self._waiting]
            raise
        except Exception as error:  # any error belongs to every caller of the batch
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)
