"""Runs work in the background of the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """Runs one piece of work at a time. `finish` waits for it and raises its error."""

    def __init__(self) -> None:
        self._under_way: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.finish()
        elif self._under_way:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """The newest piece of work. It may be done."""
        return self._under_way

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a piece of work. Call `finish` first."""
        self._under_way = asyncio.create_task(work)

    async def finish(self) -> None:
        """Wait for the work under way. Raises its error."""
        if self._under_way:
            await self._under_way


async def unless_failed(awaited: Coroutine[Any, Any, T], *background: Background) -> T:
    """Await something while work runs in the background. An error of that work is raised at once."""
    waiting = asyncio.create_task(awaited)
    works = {one.under_way for one in background if one.under_way}
    try:
        while not waiting.done():
            await asyncio.wait([waiting, *works], return_when=asyncio.FIRST_COMPLETED)
            for work in [work for work in works if work.done()]:
                work.result()
                works.remove(work)
        return waiting.result()
    finally:
        waiting.cancel()


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but a cancelled caller waits until the thread has ended.

    So no later work meets a thread that still runs.
    """
    return await to_its_end(asyncio.to_thread(work, *args, **kwargs))


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that a cancellation of the caller does not cut short. A second cancellation does not wait."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
