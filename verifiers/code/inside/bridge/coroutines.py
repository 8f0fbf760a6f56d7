"""Lets one process await the coroutines of the other.

The side that awaits asks for the outcome until there is one. Each request runs the event loop of the other side for
one turn. So several coroutines make progress together, and a timeout of the awaiting side cancels the other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

TURN_S = 0.001
Ask = Callable[..., Any]


class Coroutines:
    """The awaitables of this process that the other side awaits. Each runs once."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[int, tuple[Awaitable[Any], asyncio.Future[Any]]] = {}

    def outcome(self, awaitable: Awaitable[Any], cancel: bool) -> tuple[Any, ...]:
        """The result in a tuple, or an empty tuple if there is none yet. Raises the exception of the awaitable.

        Args:
            cancel: cancel it first. It may still give a result.
        """
        if id(awaitable) not in self._tasks:
            # The reference keeps the awaitable alive, so no other one can get the same id.
            self._tasks[id(awaitable)] = awaitable, asyncio.ensure_future(awaitable, loop=self._running())
        _, task = self._tasks[id(awaitable)]
        if cancel:
            task.cancel()
        self.turn(task)
        return (task.result(),) if task.done() else ()

    def turn(self, *awaited: asyncio.Future[Any]) -> None:
        """Run the event loop for `TURN_S`, or until one of the futures is done. A loop that runs already goes on."""
        if self._loop is not None and not _is_running():
            self._loop.run_until_complete(asyncio.wait(awaited, timeout=TURN_S) if awaited else asyncio.sleep(TURN_S))

    def _running(self) -> asyncio.AbstractEventLoop:
        if _is_running():
            return asyncio.get_running_loop()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop


def _is_running() -> bool:
    return asyncio._get_running_loop() is not None


async def awaited(ask: Ask, awaitable: Any) -> Any:
    """Await an awaitable of the other side, which `ask` sends as a handle."""
    cancel = False
    while not (outcome := ask("outcome", awaitable, cancel)):
        try:
            await asyncio.sleep(0)
            cancel = False
        except asyncio.CancelledError:
            cancel = True
    return outcome[0]


class Turns:
    """Runs the event loop of the program as long as a loop of the test runs: its tasks go on while the test sleeps."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._tasks: list[asyncio.Task[None]] = []

    def keep(self) -> None:
        """Begin in the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops.add(loop)
            self._tasks.append(loop.create_task(self._run()))

    async def _run(self) -> None:
        while True:
            self._ask("turn")
            await asyncio.sleep(0)
