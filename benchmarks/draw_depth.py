"""Adaptive against fixed depth: learner wait and lag of whole runs in simulated time, over a grid of workloads.

    python benchmarks/draw_depth.py --json benchmarks/results/draw_depth.json

Every run has the real orchestrator, loop and actors around fake engines and a fake trainer, so its figures do not
depend on the machine. The steps before the first estimate are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.deploy.plan.simulated_service import SimulatedService

STEPS, WARM_UP = 40, 5
PROMPTS, GROUP, MEAN_TOKENS = 8, 8, 40.0
TOKENS_PER_S, SLOWDOWN = 20.0, 0.01
LEARNED_PER_VERSION = 0.01
"""The share of groups with a gradient changes slowly, as in runs of hundreds of steps."""
USEFUL = 0.75
"""Share of groups with a gradient from which the speed of the learner is computed."""
LIMIT = 1.0
"""Percentage points by which the learner may wait longer than with the fixed depth."""


class Cell(NamedTuple):
    """One workload."""

    actors: int
    slots: int
    """Sequences that an engine runs at one time."""
    tail: float
    """Sigma of the log-normal lengths."""
    solve_rate: float
    learner: float
    """Step time over the time in which the engines generate a batch of mean lengths."""
    max_lag: int


class Measured(NamedTuple):
    """One run."""

    wait: float
    """Share of the time that the learner waits, in percent."""
    lag: float
    """Mean over tokens and steps."""


def grid() -> Iterator[Cell]:
    """Every engine count, slots and learner speed; lengths, solve rates and lags in turns."""
    engines = list(product((1, 2, 4, 8), (8, 32)))
    lengths = list(product((0.5, 1.3), (0.5, 0.15)))
    for i, ((actors, slots), learner) in enumerate(product(engines, (0.7, 2.0, 4.0))):
        tail, solve_rate = lengths[(i + i // 4) % 4]
        yield Cell(actors, slots, tail, solve_rate, learner, (2, 4, 8)[(i + i // 3) % 3])


def settings(
    cell: Cell, draw_ahead: str, seed: int, folder: Path, learned: float = LEARNED_PER_VERSION
) -> config.Config:
    """The recipe of a cell."""
    running = min(cell.slots, PROMPTS * GROUP / cell.actors)
    rate = cell.actors * running * TOKENS_PER_S / (1 + SLOWDOWN * (running - 1))
    return config.build(
        {
            "run": {"directory": folder, "name": draw_ahead, "mode": "simulated", "seed": seed},
            "sampling": {"group_size": GROUP, "max_tokens": int(20 * MEAN_TOKENS)},
            "schedule": {
                "steps": STEPS,
                "prompts_per_step": PROMPTS,
                "max_lag": cell.max_lag,
                "draw_ahead": draw_ahead,
            },
            "actors": {"max_running": cell.slots},
            "checkpoint": {"every": STEPS},
            "simulation": {
                "tokens_per_s": TOKENS_PER_S,
                "batch_slowdown": SLOWDOWN,
                "mean_tokens": MEAN_TOKENS,
                "tail": cell.tail,
                "solve_rate": cell.solve_rate,
                "learned_per_version": learned,
                "train_tokens_per_s": rate * USEFUL / cell.learner,
            },
        }
    )


def one_run(cell: Cell, draw_ahead: str, seed: int, learned: float) -> Measured:
    """One run of a cell."""
    with TemporaryDirectory() as folder:
        service = SimulatedService(settings(cell, draw_ahead, seed, Path(folder), learned), cell.actors)
        service.run()
    lines = service.lines[WARM_UP:]
    wait = sum(line["learner_wait_s"] for line in lines)
    trained = sum(line["learner_step_s"] for line in lines)
    return Measured(100 * wait / (wait + trained), mean(line["lag_mean"] for line in lines))


def measure_cell(cell: Cell, seeds: int, learned: float) -> dict[str, list[Measured]]:
    """All runs of a cell, by the kind of depth."""
    return {kind: [one_run(cell, kind, seed, learned) for seed in range(seeds)] for kind in ("fixed", "adaptive")}


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median and range over all cells and seeds."""
    pairs = [pair for cell in cells for pair in zip(cell["fixed"], cell["adaptive"], strict=True)]
    longer = [adaptive[0] - fixed[0] for fixed, adaptive in pairs]
    lower = [fixed[1] - adaptive[1] for fixed, adaptive in pairs]
    return {
        "runs": len(pairs),
        "longer_wait_points": _spread(longer),
        "lower_lag": _spread(lower),
        "fixed_wait": _spread([fixed[0] for fixed, _ in pairs]),
        "adaptive_wait": _spread([adaptive[0] for _, adaptive in pairs]),
        "fixed_lag": _spread([fixed[1] for fixed, _ in pairs]),
        "adaptive_lag": _spread([adaptive[1] for _, adaptive in pairs]),
        "runs_over_limit": sum(one > LIMIT for one in longer),
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [round(median(values), 3), round(min(values), 3), round(max(values), 3)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and write the file; 1 if a run waits longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learned", type=float, default=LEARNED_PER_VERSION, help="simulation.learned_per_version")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    table = Table(*Cell._fields, "wait fixed", "wait adaptive", "lag fixed", "lag adaptive")
    cells = []
    with ProcessPoolExecutor(given.processes) as pool:
        for cell, runs in zip(
            grid(), pool.map(partial(measure_cell, seeds=given.seeds, learned=given.learned), grid()), strict=True
        ):
            cells.append(cell._asdict() | runs)
            fixed, adaptive = _texts(runs["fixed"]), _texts(runs["adaptive"])
            table.add_row(*map(str, cell), fixed[0], adaptive[0], fixed[1], adaptive[1])
    found = summary(cells)
    Console(width=140).print(table)
    print(json.dumps(found, indent=1))
    if given.json:
        measure.write(given.json, {"benchmark": "draw_depth", **found, "cells": cells}, ("numpy",))
    return int(found["runs_over_limit"] > 0)


def _texts(runs: Sequence[Measured]) -> tuple[str, str]:
    wait, lag = _spread([run.wait for run in runs]), _spread([run.lag for run in runs])
    return f"{wait[0]:.1f} ({wait[1]:.1f}-{wait[2]:.1f})", f"{lag[0]:.2f} ({lag[1]:.2f}-{lag[2]:.2f})"


if __name__ == "__main__":
    sys.exit(main())
