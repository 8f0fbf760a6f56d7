"""The number of actors follows the learner's need, in simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.deploy.supervision.autoscaler import Autoscaler
from olmorl.deploy.view.verdict import WINDOW, Shape, verdict

Build = Callable[..., Any]
NODE = 50.0
STEPS = 64


def run_of(service: Build, learner_nodes: float, actors: int, steps: int = STEPS) -> Any:
    overrides = {
        "schedule.steps": steps, "schedule.prompts_per_step": 16, "schedule.max_lag": 2, "actors.nodes": actors,
        "actors.max_running": 8, "checkpoint.every": 1000, "simulation.tokens_per_s": 20.0,
        "simulation.batch_slowdown": 0.02, "simulation.mean_tokens": 40.0, "simulation.tail": 0.5,
        "simulation.prompt_spread": 0.8, "simulation.learned_per_version": 0.0,
        "simulation.train_tokens_per_s": learner_nodes * NODE,
    }  # fmt: skip
    return service(overrides, num_actors=actors)


async def follow(run: Any, autoscaler: Autoscaler) -> list[tuple[int, int]]:
    """Let the run go on to its end; returns each step with the number of actors after a change."""
    changes, names = [], [f"actor-{number}" for number in range(run.num_actors)]
    await run.start()
    file, seen = run.run_dir / "metrics.jsonl", 0
    while not await run.ended_within(1.0):
        text = file.read_text() if file.exists() else ""
        if text.count("\n") == seen:
            continue
        seen = text.count("\n")
        lines = [json.loads(line) for line in text.splitlines()[-WINDOW - 4 :]]
        wanted = autoscaler.wanted(lines, len(names))
        if wanted != len(names):
            changes.append((seen, wanted))
        while len(names) < wanted:
            names.append(run.add_actor())
        for name in names[wanted:]:
            actor = next(one for one in run.actors if one.name == name)
            run.actor_tasks[f"{name} drains"] = asyncio.create_task(actor.drain())
        del names[wanted:]
    await run.finish()
    return changes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner_nodes", "actors", "bounds"),
    [(8, 1, (1, 16)), (8, 12, (1, 16)), (8, 8, (1, 16)), (8, 1, (1, 3)), (2, 6, (4, 8))],
)
def test_it_converges_to_the_planned_number_within_the_bounds_and_stays(
    service: Build, learner_nodes: int, actors: int, bounds: tuple[int, int]
) -> None:
    planned = run_of(service, learner_nodes, 6, steps=24)
    run_simulated(planned.run())
    found = verdict(planned.lines, Shape.of(planned.settings, 6))
    assert found is not None and found.actors_per_learner is not None
    run = run_of(service, learner_nodes, actors)
    changes = run_simulated(follow(run, Autoscaler(bounds, Shape.of(run.settings, actors))))
    size, needed = changes[-1][1] if changes else actors, found.actors_per_learner
    assert bounds[0] <= size <= bounds[1]
    assert size in bounds or abs(size - needed) <= 0.2 * needed + 1, (needed, changes)  # as sure as the ratio is
    assert len(changes) <= 2 and (not changes or changes[0][0] <= 16), f"a few windows, and no flapping: {changes}"
    run.check_lines()
