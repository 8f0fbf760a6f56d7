"""Every generated token has one outcome, and the outcomes add up to what the engines say that they generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from olmorl import metrics
from olmorl.clock import run_simulated
from tests.service.conftest import rows

Build = Callable[..., Any]
SMALL = {"schedule.steps": 10, "simulation.tail": 1.2, "actors.heartbeat_s": 0.5}


def parts(line: dict[str, Any]) -> dict[str, int]:
    return {outcome: line[f"tokens_{outcome}_total"] for outcome in metrics.OUTCOMES}


def generated(run: Any) -> int:
    """By the engines, which know nothing of groups and outcomes."""
    return sum(actor.status().tokens_generated for actor in run.actors)


async def whole(run: Any) -> int:
    """A run without interruption; returns what the engines generated."""
    await run.start()
    await run.finish()
    return generated(run)


NO_SPARES = {**SMALL, "schedule.filter_zero_gradient": False}
"""At the end of other asynchronous runs there are spare draws, which have tokens and no outcome."""


def test_filtered_groups_are_counted_too(service: Build) -> None:
    run = service({**SMALL, "schedule.max_lag": 0})
    by_engines = run_simulated(whole(run))
    found = parts(run.lines[-1])
    assert found["trained"] > 0 < found["zero_gradient"]
    assert sum(found.values()) == by_engines


@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
def test_the_outcomes_add_up_to_what_the_engines_generated(service: Build, over_age: str) -> None:
    held = {"held": rows(6, "held")}
    run = service({**NO_SPARES, "schedule.max_lag": 1, "schedule.over_age": over_age}, evaluations=held)
    by_engines = run_simulated(whole(run))
    run.check_lines()
    last = run.lines[-1]
    found = parts(last)
    assert found["trained"] > 0 < found["evaluation"] and found["zero_gradient"] == found["failed"] == 0
    assert (found["masked"] > 0) == (over_age == "mask")
    assert (found["stale"] + found["lost"] > 0) == (over_age != "wait")  # a group that is masked whole is stale
    # The last heartbeats may know of cancelled work that the last line does not know, and dropped groups have spares.
    unheard = by_engines - sum(found.values())
    assert unheard == 0 if over_age == "wait" else 0 <= unheard < 0.25 * by_engines


def test_what_a_dead_actor_had_in_work_is_lost_and_counted_once(service: Build) -> None:
    run = service(NO_SPARES, num_actors=2)
    lost = []

    async def story() -> None:
        await run.start()
        await run.steps(3)
        await run.kill_actor("actor-0")
        status = (await run.queue.statuses())["actor-0"]
        lost.append(status.tokens_generated - status.tokens_stored - status.tokens_wasted)
        run.add_actor()
        await run.orchestrator.control.declare_dead("actor-0")
        await run.finish()
        lost.append(generated(run))

    run_simulated(story())
    run.check_lines()
    last = run.lines[-1]
    assert 0 < parts(last)["lost"] <= lost[0]
    # The tokens between its last heartbeat and its death are not known to anybody but its engine.
    unknown = lost[1] - sum(parts(last).values())
    assert 0 <= unknown < 200


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
    assert sum(line["verifier_math_groups"] for line in run.lines) == total
