"""Counting a queue that may have been restarted since the last count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from olmorl.clock import run_simulated
from olmorl.errors import RunEnded
from olmorl.learner.orchestrator.evaluation import Evaluator
from olmorl.learner.orchestrator.reconciler import DESCRIBE_S, Reconciler
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.waits import Waits
from olmorl.messages import TRAIN_LANE, Version

Build = Callable[..., Any]
V0 = Version(1, 0)


def reconciler(run: Any, epoch: str) -> Reconciler:
    """The reconciler of a run without evaluation sets."""
    evaluator = Evaluator(run.queue, {}, run.settings.evaluation, run.clock, AsyncMock(), 9)
    control = RunControl(run.queue, Waits(run.clock))
    return Reconciler(run.queue, epoch, run.lifecycle, run.batcher, evaluator, control)


def restarts(run: Any, monkeypatch: pytest.MonkeyPatch, *epochs: str) -> None:
    """Have the queue answer with these epochs, then with the last one."""
    left = list(epochs)

    async def epoch() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(run.queue, "epoch", epoch)


def test_a_queue_that_was_not_restarted_must_add_up(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            found = reconciler(run, await run.queue.epoch())
            await run.lifecycle.draw(3, V0)
            assert (await found.counts())[1] == 3
            await run.queue.withdraw([1], TRAIN_LANE)
            with pytest.raises(RunEnded, match="do not add up"):
                await found.counts()

    run_simulated(scenario())


def test_what_a_restart_lost_is_in_flight_and_queued_again(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            found = reconciler(run, "1")
            restarts(run, monkeypatch, "2")
            await run.lifecycle.draw(3, V0)
            await run.answer(1.0, 0.0)
            await run.settle()
            assert run.batcher.num_ready == 1
            await run.queue.withdraw([1], TRAIN_LANE)
            assert (await found.counts())[1] == 3 and found.epoch == "2"
            assert run.batcher.num_ready == 0, "the queue delivers its results again"
            await run.settle()
            assert run.batcher.num_ready == 1
            await run.lifecycle.draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert {lease.prompt.draw_id: lease.prompt.attempt for lease in leases} == {1: 2, 2: 1}

    run_simulated(scenario())


def test_a_restart_while_it_counts_is_no_error(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            found = reconciler(run, "1")
            await run.lifecycle.draw(3, V0)
            await run.queue.withdraw([1], TRAIN_LANE)
            restarts(run, monkeypatch, "1", "2")
            assert (await found.counts())[1] == 3 and found.epoch == "2"

    run_simulated(scenario())


def test_it_says_where_everything_is_or_that_it_is_blocked(parts: Build) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            found = reconciler(run, await run.queue.epoch())
            await run.lifecycle.draw(3, V0)
            began = run.clock.now()
            assert "the orchestrator itself waits" in await found.describe()
            assert run.clock.now() - began == DESCRIBE_S
            asking = asyncio.create_task(found.describe())
            await asyncio.sleep(1)
        assert (await asking).startswith("0 groups are ready; of the prompts 3 are queued, 0 with actors, 0 back")

    run_simulated(scenario())
