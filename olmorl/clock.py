"""Clocks: the same scheduling code runs on the wall clock and in simulated time."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, TypeVarTuple

from olmorl.errors import DeadlinePassed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Clock(Protocol):
    """The time source of all code that waits or measures time."""

    def now(self) -> float:
        """Monotonic seconds, for durations within one process."""
        ...

    def wall(self) -> float:
        """Unix seconds, for deadlines that cross processes."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """Real time."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LoopClock:
    """The time of the running event loop: simulated under `run_simulated`, real otherwise."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: when nothing is ready, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("simulated time: every task waits and no timer is set (deadlock)")
            self.time += max(timeout, 0.0)
        return ready


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _JumpingSelector) -> None:
        super().__init__(selector)
        self._simulated = selector

    def time(self) -> float:
        return self._simulated.time

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function at once, in this thread. It takes no simulated time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # raised where the future is awaited, as with a thread
            future.set_exception(error)
        return future


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` with sleeps and timeouts in simulated time: hours pass in seconds.

    Raises:
        RuntimeError: every task waits and no timer is set. In real time this would hang.
    """
    with asyncio.Runner(loop_factory=lambda: _SimulatedLoop(_JumpingSelector())) as runner:
        return runner.run(main)


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Limit the block to `seconds`; `what` names the wait and its owner.

    Raises:
        DeadlinePassed: the block took longer.
    """
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise DeadlinePassed(f"waited {seconds:g} s for {what}") from None
