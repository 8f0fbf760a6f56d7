"""Coroutines of one side awaited by the other: together, with their exceptions, and cancelled by a timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from olmorl.verifiers.code.inside.bridge.coroutines import Coroutines, Turns, awaited
from tests.waiting import seconds


class OtherSide:
    """Answers requests as the other process does, with an event loop of its own."""

    def __init__(self) -> None:
        self._coroutines = Coroutines()
        self.turns = 0

    def ask(self, verb: str, *values: Any) -> Any:
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)  # the other process does not see the loop of this one
        try:
            if verb == "turn":
                self.turns += 1
                return self._coroutines.turn()
            return self._coroutines.outcome(*values)
        finally:
            asyncio._set_running_loop(outer)


async def slow(value: int, log: list[str], takes_s: float = 0.05) -> int:
    try:
        await asyncio.sleep(takes_s)
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
    return value


def test_several_make_progress_together() -> None:
    other = OtherSide()

    async def main() -> list[int]:
        return await asyncio.gather(*(awaited(other.ask, slow(value, [])) for value in range(8)))

    started = seconds()
    assert asyncio.run(main()) == list(range(8))
    assert seconds() - started < 8 * 0.05


def test_a_timeout_cancels_and_waits_until_the_other_side_has_ended() -> None:
    other, log = OtherSide(), list[str]()

    async def main() -> None:
        await asyncio.wait_for(awaited(other.ask, slow(1, log, 60.0)), 0.01)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(main())
    assert log == ["cancelled"]


def test_an_exception_reaches_the_side_that_awaits() -> None:
    async def fail() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        asyncio.run(awaited(OtherSide().ask, fail()))


def test_the_other_loop_turns_as_long_as_this_one_runs() -> None:
    other = OtherSide()

    async def main() -> None:
        turns = Turns(other.ask)
        turns.keep()
        turns.keep()
        while other.turns < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    asyncio.run(main())
    assert other.turns > 1
