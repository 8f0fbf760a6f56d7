"""The number of actors follows the learner's need, in simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.deploy.supervision.autoscaler import Autoscaler
from olmorl.deploy.view.verdict import WINDOW, Shape, verdict

Build = Callable[..., Any]
NODE = 50.0
STEPS = 80


def run_of(service: Build, learner_nodes: float, actors: int, **more: Any) -> Any:
    overrides = {
        "schedule.steps": STEPS, "schedule.prompts_per_step": 16, "schedule.max_lag": 2, "actors.nodes": actors,
        "actors.max_running": 8, "checkpoint.every": 1000, "simulation.tokens_per_s": 20.0,
        "simulation.batch_slowdown": 0.02, "simulation.mean_tokens": 40.0, "simulation.tail": 0.5,
        "simulation.prompt_spread": 0.8, "simulation.learned_per_version": 0.0,
        "simulation.train_tokens_per_s": learner_nodes * NODE,
    }  # fmt: skip
    return service(overrides, num_actors=actors, **more)


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


@pytest.mark.parametrize(("learner_nodes", "actors"), [(12, 1), (12, 9), (20, 2), (6, 12), (12, 6)])
def test_it_converges_to_the_planned_number_and_stays(service: Build, learner_nodes: int, actors: int) -> None:
    planned = run_of(service, learner_nodes, 6)
    run_simulated(planned.run())
    found = verdict(planned.lines, Shape.of(planned.settings, 6))
    assert found is not None and found.actors_per_learner is not None
    run = run_of(service, learner_nodes, actors)
    changes = run_simulated(follow(run, Autoscaler((1, 16), Shape.of(run.settings, actors))))
    size = changes[-1][1] if changes else actors
    needed = found.actors_per_learner * planned.settings.learner.nodes
    assert size in {min(ceil(each), 16) for each in (needed / 1.1, needed, 1.1 * needed)}, (needed, changes)
    assert len(changes) <= 3 and (not changes or changes[0][0] <= 15), "a few windows, and no flapping"
