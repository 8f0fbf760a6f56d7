"""Where the time of an actor's sequences goes, worked by hand in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.actors.fake_engine import FakeScorer
from olmorl.clock import run_simulated
from olmorl.messages import ActorStatus, Version
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0, update_s=0.5)
"""Every answer takes 10 s."""


def statuses_of(service: Make, draw: Make, *, seconds: float, **changes: Any) -> ActorStatus:
    """One actor with 16 slots and one group of four: its state after so many seconds."""

    async def scenario() -> ActorStatus:
        s = service(simulation=STEADY, **changes)
        version = Version(1, 1) if changes.get("shelf") is None else Version(1, 0)
        await s.push(draw(0, min_version=version))
        actor = s.actor()
        async with s.running(actor):
            await asyncio.sleep(6.0)
            if version.number:
                s.shelf.publish(version)
            await asyncio.sleep(seconds - 6.0)
            found: ActorStatus = actor.status()
        return found

    return run_simulated(scenario())


def test_each_second_of_a_sequence_is_in_one_state(service: Make, draw: Make) -> None:
    status = statuses_of(service, draw, seconds=40.0, scorer=FakeScorer(verify_s=3.0))
    assert status.up_s == pytest.approx(40.0, abs=0.1)
    assert status.slots_s == pytest.approx(16 * 40.0, rel=0.01)
    # Four sequences wait 6 s for the version and its update, run for 10 s, and are verified for 3 s.
    assert status.awaiting_weights_s == pytest.approx(4 * 6.5, abs=0.8)
    assert status.busy_s == pytest.approx(10.0)
    assert status.running_s == pytest.approx(40.0)
    assert status.awaiting_verdicts_s == pytest.approx(4 * 3.0)
    assert status.awaiting_group_s == pytest.approx(0.0, abs=0.1)


def test_the_first_of_a_group_wait_for_the_last(service: Make, draw: Make) -> None:
    class OneSlow(FakeScorer):
        async def verify(self, prompt: Any, completion: Any) -> Any:
            await asyncio.sleep(8.0 if completion.index == 0 else 1.0)
            return await super().verify(prompt, completion)

    status = statuses_of(service, draw, seconds=40.0, scorer=OneSlow())
    assert status.awaiting_verdicts_s == pytest.approx(8.0 + 3 * 1.0)
    assert status.awaiting_group_s == pytest.approx(3 * 7.0, abs=0.1)
