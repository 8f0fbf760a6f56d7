"""Commands to a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from olmorl.clock import LoopClock, run_simulated
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.waits import Waits
from olmorl.ports import DeadLetter, Queue

Build = Callable[..., Any]
LONG = {"schedule.steps": 100, "checkpoint.every": 50}


def test_a_pause_lets_leased_draws_end_and_a_resume_continues(service: Build) -> None:
    run = service({"schedule.steps": 12, "learner.batch_deadline_s": 100})

    async def scenario() -> tuple[int, int]:
        await run.start()
        await run.steps(3)
        await run.orchestrator.control.pause()
        await asyncio.sleep(60)
        paused = run.ledger, len(run.lines)
        assert (await run.queue.counts("train")).leased == 0, "no draw is leased"
        await asyncio.sleep(3600)
        assert (run.ledger, len(run.lines)) == paused, "nothing is drawn or trained, and no deadline passes"
        await run.orchestrator.control.resume()
        await run.finish()
        return len(paused[0]), paused[1]

    draws, steps = run_simulated(scenario())
    run.check_lines()
    assert 3 <= steps <= 6 and draws < len(run.ledger)
    assert len(run.lines) == 12


def test_the_last_word_holds_however_late_it_can_be_said() -> None:
    said: list[str] = []

    async def set_control(owner: str, order: str) -> None:
        await asyncio.sleep(60.0 if order == "pause" else 0.0)  # Redis is away for a while
        said.append(order)

    async def scenario() -> RunControl:
        orders = RunControl(cast(Queue, SimpleNamespace(set_control=set_control)), Waits(LoopClock()))
        pausing = asyncio.create_task(orders.pause())
        await asyncio.sleep(1.0)
        await orders.resume()
        await pausing
        return orders

    orders = run_simulated(scenario())
    assert said == ["pause", "run"]
    assert orders.drawing


@pytest.mark.parametrize("paused", [False, True])
def test_a_checkpoint_is_written_when_it_is_asked_for(service: Build, paused: bool) -> None:
    run = service(LONG)

    async def scenario() -> int:
        await run.start()
        await run.steps(3)
        if paused:
            await run.orchestrator.control.pause()
            await asyncio.sleep(60)
        step = await run.orchestrator.save()
        assert step == len(run.lines), "after the step under way"
        assert await run.orchestrator.save() >= step
        await run.crash(actors=True)
        await run.start(resume=True)
        assert (await run.orchestrator.begin(0)).step >= step
        await run.orchestrator.control.resume()
        await run.steps(step + 2)
        await run.crash(actors=True)
        return step

    step = run_simulated(scenario())
    assert (run.run_dir / "checkpoints" / f"step_{step}" / "complete").exists()
    run.check_lines()


def test_letters_of_draws_that_were_abandoned_are_gone(service: Build) -> None:
    run = service({"schedule.steps": 12, "schedule.max_lag": 4, "checkpoint.every": 2}, num_actors=1)

    async def scenario() -> int:
        await run.start()
        await run.until((run.run_dir / "checkpoints" / "step_2" / "complete").exists)
        lane = run.queue._run.lanes["train"]
        damaged: int = lane.fresh[-1]
        lane.prompts[damaged].payload = b"damaged"
        await run.until(lambda: any(record["outcome"] == "failed" for record in run.ledger))
        assert [letter.draw for letter in await run.orchestrator.draws.letters()] == [damaged]
        await run.crash(actors=True)
        lane.dead.append(DeadLetter(10**6, "of a history that is gone", b""))
        await run.start(resume=True)
        assert [letter.draw for letter in await run.orchestrator.draws.letters()] == [damaged]
        await run.crash(actors=True)
        await run.start(resume=True, from_step=2)
        assert await run.orchestrator.draws.letters() == []
        assert await run.orchestrator.draws.replay_letters() == []
        await run.finish()
        return damaged

    damaged = run_simulated(scenario())
    run.check_lines()
    assert run.ledger[damaged]["outcome"] != "failed"


def test_dead_letters_are_drawn_again_once_also_by_the_next_learner(service: Build) -> None:
    run = service({"schedule.steps": 12, "schedule.max_lag": 4}, num_actors=1)

    async def scenario() -> list[int]:
        await run.start()
        await run.steps(1)
        lane = run.queue._run.lanes["train"]
        damaged = [lane.fresh[-1], lane.fresh[-2]]
        for draw_id in damaged:
            lane.prompts[draw_id].payload = b"damaged"
        draws = run.orchestrator.draws
        await run.until(lambda: sum(record["outcome"] == "failed" for record in run.ledger) == 2)
        assert sorted(letter.draw for letter in await draws.letters()) == sorted(damaged)
        assert await draws.replay_letters() == sorted(damaged)
        await run.crash(actors=True)
        await run.start(resume=True)
        assert await run.orchestrator.draws.replay_letters() == [], "it is on record that people asked"
        await run.finish()
        assert await run.orchestrator.draws.letters() == []
        return damaged

    damaged = run_simulated(scenario())
    run.check_lines()
    rows = {record["prompt_id"]: record["row"] for record in run.ledger}
    failed = [record["prompt_id"] for record in run.ledger if record["outcome"] == "failed"]
    assert sorted(failed) == sorted(damaged)
    for draw_id in damaged:
        again = [record for record in run.ledger if record["row"] == rows[draw_id]]
        assert [record["outcome"] == "failed" for record in again] == [True, False]


def test_finite_data_do_not_end_before_the_rows_that_people_asked_for_again(service: Build) -> None:
    run = service({"data.epochs": 1, "schedule.max_lag": 4}, num_actors=1, num_rows=25)

    async def scenario() -> int:
        await run.start()
        await run.until(lambda: len(run.queue._run.lanes["train"].fresh) > 1)
        lane = run.queue._run.lanes["train"]
        damaged: int = lane.fresh[-1]
        lane.prompts[damaged].payload = b"damaged"
        await run.until(lambda: any(record["outcome"] == "failed" for record in run.ledger))
        assert await run.orchestrator.draws.replay_letters() == [damaged]
        await run.orchestrator.control.pause()
        await asyncio.sleep(100)
        await run.orchestrator.control.resume()
        await run.finish()
        return damaged

    damaged = run_simulated(scenario())
    run.check_lines()
    rows = [record["row"] for record in run.ledger]
    assert rows.count(run.ledger[damaged]["row"]) == 2
