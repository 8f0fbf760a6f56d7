"""Every generated token has one outcome, and the outcomes add up to what the engines say that they generated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from olmorl import metrics
from olmorl.clock import run_simulated
from olmorl.codec import decode
from olmorl.messages import TRAIN_LANE, ActorStatus
from olmorl.queues.prompts.deliveries import to_result
from tests.service.conftest import rows

Build = Callable[..., Any]
SMALL = {"schedule.steps": 10, "simulation.tail": 1.2, "deadlines.BETWEEN_HEARTBEATS_S": 0.5}


def parts(line: dict[str, Any]) -> dict[str, int]:
    return {outcome: line[f"tokens_{outcome}_total"] for outcome in metrics.OUTCOMES}


def generated(run: Any) -> int:
    """By the engines, which know nothing of groups and outcomes."""
    return sum(actor.status().tokens_generated for actor in run.actors)


def after_the_last_line(run: Any) -> int:
    """Tokens that no line counts: of spares that ended or wait for an outcome, and of work that was cancelled."""
    waiting = [to_result(stored, TRAIN_LANE) for stored in run.queue._run.lanes[TRAIN_LANE].results.values()]
    assert {result.prompt.draw_id for result in waiting} <= run.in_flight
    counts = run.orchestrator._metrics
    counts.heard({actor.name: actor.status() for actor in run.actors}, run.clock.now())
    ended = sum(event["score"].get("tokens", 0) + event.get("wasted", 0) for event in run.decided_after_the_last_line)
    return int(ended + sum(result.num_tokens for result in waiting) + sum(counts.lost().values()))


async def whole(run: Any) -> tuple[int, int]:
    """A run without interruption; returns the tokens that the engines generated, and those after the last line."""
    await run.start()
    await run.finish()
    return generated(run), after_the_last_line(run)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
def test_the_outcomes_add_up_to_what_the_engines_generated(service: Build, over_age: str, max_lag: int) -> None:
    held = {"held": rows(6, "held")}
    run = service({**SMALL, "schedule.max_lag": max_lag, "schedule.over_age": over_age}, evaluations=held)
    by_engines, later = run_simulated(whole(run))
    run.check_lines()
    found = parts(run.lines[-1])
    assert found["trained"] > 0 < found["zero_gradient"] and found["evaluation"] > 0 == found["failed"]
    assert (found["masked"] > 0) == (over_age == "mask" and max_lag > 0)
    assert (found["stale"] + found["lost"] > 0) == (over_age == "drop" and max_lag > 0)
    assert sum(found.values()) + later == by_engines
    assert (later > 0) == (max_lag > 0)


def test_what_a_dead_actor_had_in_work_is_lost_and_counted_once(service: Build) -> None:
    run = service(SMALL, num_actors=2)

    async def story() -> tuple[int, int, int, int]:
        await run.start()
        await run.steps(3)
        heard = (await run.queue.statuses())["actor-0"]
        await run.kill_actor("actor-0")
        dead = run.actors[0].status()
        run.add_actor()
        await run.orchestrator.declare_dead("actor-0")
        await run.finish()
        del run.actors[0]  # it sends no heartbeat any more
        unfinished = heard.tokens_generated - heard.tokens_stored - heard.tokens_wasted
        unheard = dead.tokens_generated - heard.tokens_generated
        return unfinished, unheard, dead.tokens_generated + generated(run), after_the_last_line(run)

    unfinished, unheard, by_engines, later = run_simulated(story())
    run.check_lines()
    found = parts(run.lines[-1])
    assert 0 < found["lost"] <= unfinished
    # Nobody but its engine knows the tokens between its last heartbeat and its death.
    assert sum(found.values()) + later == by_engines - unheard


def in_the_books(run: Any) -> int:
    """Tokens with an outcome, in the ledger of all starts, and those that wait for one."""
    counts, state = run.orchestrator._metrics, run.orchestrator.draws.state
    counts.heard({actor.name: actor.status() for actor in run.actors}, run.clock.now())
    ended = state.decided_tokens.total() + state.trained.scored + sum(state.lost.values())
    return int(ended + waiting_for_an_outcome(run) + sum(counts.lost().values()))


def waiting_for_an_outcome(run: Any) -> int:
    """Tokens of the results in the queue."""
    results = run.queue._run.lanes[TRAIN_LANE].results.values()
    return sum(to_result(stored, TRAIN_LANE).num_tokens for stored in results)


async def bury(run: Any) -> None:
    """What the launcher does: an actor that has a heartbeat and no process is dead."""
    for name in (await run.queue.statuses()).keys() - run.actor_tasks.keys():
        await run.orchestrator.declare_dead(name)


@pytest.mark.parametrize("dies", ["before it is forgotten", "after it is forgotten"])
def test_an_orchestrator_that_dies_over_a_dead_actor_has_counted_what_that_lost(service: Build, dies: str) -> None:
    run = service(SMALL, num_actors=2)

    async def story() -> None:
        await run.start()
        await run.steps(3)
        await run.kill_actor("actor-0")
        dead, heard = run.actors[0].status(), (await run.queue.statuses())["actor-0"]
        run.add_actor()
        if dies == "before it is forgotten":
            run.orchestrator._queue.forget_actor = partial(asyncio.sleep, 1e9)
        with suppress(TimeoutError):
            await asyncio.wait_for(bury(run), 0.1)
        await run.crash(actors=False)
        await run.start(resume=True)
        await bury(run)
        await run.finish()
        del run.actors[0]
        assert run.orchestrator.draws.state.lost[f"actor-0/{dead.pid}"] > 0
        assert in_the_books(run) == heard.tokens_generated + generated(run)

    run_simulated(story())


def test_what_was_stored_after_the_last_heartbeat_is_not_lost_in_a_power_cut(service: Build) -> None:
    run = service({**SMALL, "deadlines.BETWEEN_HEARTBEATS_S": 20.0}, num_actors=2)

    async def story() -> None:
        await run.start()
        await run.steps(3)
        await asyncio.sleep(15.0)
        said = {name: decode(beat, ActorStatus) for name, beat in run.queue._run.statuses.items()}
        dead = [actor.status() for actor in run.actors]
        await run.crash(actors=True)
        since = sum(last.tokens_stored - said[last.name].tokens_stored for last in dead)
        assert since > 2 * waiting_for_an_outcome(run), "most of them have one"
        await run.start(resume=True)
        for name in said:
            await run.orchestrator.declare_dead(name)
        known = [max(said[each.name].tokens_generated, each.tokens_stored) for each in dead]
        del run.actors[:2]
        await run.finish()
        assert in_the_books(run) == sum(known) + generated(run)

    run_simulated(story())


def test_a_resumed_run_keeps_its_counts(service: Build) -> None:
    run = service({**SMALL, "checkpoint.every": 4}, evaluations={"held": rows(6, "held")})

    async def story() -> None:
        await run.start()
        await run.steps(7)
        await run.crash(actors=True)
        before = parts(run.lines[-1])
        await run.start(resume=True)
        await run.finish()
        for name, count in before.items():
            assert parts(run.lines[-1])[name] >= count, name

    run_simulated(story())
    run.check_lines()


def test_sources_verifiers_and_causes_are_counted_in_each_line(service: Build) -> None:
    run = service(SMALL, rows=[*rows(300, "easy"), *rows(300, "hard")])
    run_simulated(run.run())
    for line in run.lines:
        groups = {name: line.get(f"source_{name}.jsonl_groups", 0) for name in ("easy", "hard")}
        assert sum(groups.values()) == line["verifier_math_groups"]
        assert line["draws_per_trained_group"] == sum(groups.values()) / line["batch_groups"]
    assert all(sum(line.get(f"source_{name}.jsonl_groups", 0) for line in run.lines) > 0 for name in ("easy", "hard"))
    ended = {record["outcome"] for record in run.ledger}
    assert ended - {"in_flight"} == {"trained", "zero_gradient"}
    total = run.lines[-1]["groups_trained_total"] + run.lines[-1]["groups_zero_gradient_total"]
    # Draws that ended between the last batch and the last line are part of the totals, and of no batch.
    no_batch = run.orchestrator.draws.state.num_decided - len(run.decided_after_the_last_line)
    assert sum(line["verifier_math_groups"] for line in run.lines) + no_batch == total


def test_a_loss_after_the_end_of_a_run_is_left_to_the_next_start(service: Build) -> None:
    """An actor that leaves while others still stop: the ledger is closed, and its heartbeat stays."""
    run = service(SMALL | {"schedule.steps": 50}, num_actors=3)

    async def story() -> bool:
        await run.start()
        await run.steps(4)
        run.orchestrator.control.stop()
        await asyncio.gather(*run._tasks)
        await run.actors[0].stop()
        assert run.actors[0].status().tokens_wasted > 0
        await run.orchestrator.declare_dead("actor-0")
        stays = "actor-0" in await run.queue.statuses()
        await run.crash(actors=True)
        return stays

    assert run_simulated(story())
