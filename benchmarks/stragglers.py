"""Stragglers: how busy engines are when a few answers are far longer than the others, against an upper bound.

    python benchmarks/stragglers.py --json benchmarks/results/stragglers.json

Whole runs in simulated time: log-normal lengths cut at 20 times their mean, a learner much faster than the engines,
`max_lag` 4, every token within its lag, nothing dropped. `speed` is tokens per second, divided by full engines'. With
`--over-age mask` or `drop` the other ways to treat groups that grow too old run on the same draws.

The bound holds for every scheduler that begins the same draws in the same order, also for one that knows all lengths
beforehand. Let B be the prompts of a step, a = max_lag + 1, and L the seconds of a draw's longest answer alone on an
engine. The live draws are at most a B, so draw i begins at version i // B - a + 1 or later. Draws begin in order and
step s needs s B of them, so it begins at version i // B or earlier. Begun at version v it trains at step v + a or
earlier, and not before it is finished. So the 2 a - 1 steps after version i // B - a + 1 last L together. Such
stretches add up when they do not overlap; the bound adds the heaviest ones. The engines' full speed is another bound.

A scheduler that learns a length only when the answer ends cannot do better by another order. The lengths are drawn
independently of the prompts, so its k-th begun draw has lengths of the same distribution, whatever it chose before. On
average over seeds the bound holds for all such schedulers.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
import numpy as np
from rich.console import Console
from rich.table import Table

from olmorl import config, seeds
from olmorl.actors.fake_answers import RandomAnswers
from olmorl.deploy.plan.figures import figures_of, warm_up
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.plan.workload import mean_without_limit
from olmorl.messages import TRAIN_LANE
from olmorl.ports import Sampling

BATCH, GROUP, LAG, STEPS = 16, 8, 4, 100
MEAN, CUT = 50.0, 20
TOKENS_PER_S, SLOWDOWN, LEARNER = 20.0, 0.01, 20.0


class Cell(NamedTuple):
    """One workload."""

    actors: int
    slots: int
    sigma: float


class Run(NamedTuple):
    """One run of a cell."""

    busy: float
    """Share of the slots in use."""
    speed: float
    """Tokens per second, divided by full engines'."""
    bound: float
    """Upper bound of `speed`."""
    lag: float
    lag_max: int
    lost: float
    """Share of the groups that grew too old and were not trained."""


CELLS = [Cell(actors, 32, sigma) for actors in (1, 2, 4) for sigma in (0.9, 1.3)]


def recipe(cell: Cell, seed: int, folder: str, over_age: str = "wait") -> config.Config:
    """The recipe of a cell."""
    return config.build(
        {
            "run": {"directory": folder, "name": "stragglers", "mode": "simulated", "seed": seed},
            "sampling": {"group_size": GROUP, "max_tokens": int(CUT * MEAN)},
            "schedule": {
                "steps": 1_000_000,
                "prompts_per_step": BATCH,
                "max_lag": LAG,
                "over_age": over_age,
                "filter_zero_gradient": False,
            },
            "actors": {"max_running": cell.slots},
            "checkpoint": {"every": 1_000_000},
            "simulation": {
                "tokens_per_s": TOKENS_PER_S,
                "batch_slowdown": SLOWDOWN,
                "mean_tokens": mean_without_limit(MEAN, cell.sigma, CUT * MEAN),
                "tail": cell.sigma,
                "train_tokens_per_s": LEARNER * full_speed(cell),
            },
        }
    )


def full_speed(cell: Cell) -> float:
    """Tokens per second of all engines with every slot in use."""
    return cell.actors * cell.slots * TOKENS_PER_S / (1 + SLOWDOWN * (cell.slots - 1))


def lengths(settings: config.Config, draws: int) -> list[list[int]]:
    """Tokens of every answer of the first draws, as the engines will sample them."""
    answers = RandomAnswers(settings.simulation)
    limit, prompt = settings.sampling.max_tokens, np.zeros(1, np.int32)

    def length(draw: int, index: int) -> int:
        seed = seeds.derive(settings.run.seed, TRAIN_LANE, draw, 1, index)
        answer = answers.sample("", prompt, Sampling(max_tokens=limit, seed=seed))
        return min(max(1, answer.num_tokens), limit)

    return [[length(draw, index) for index in range(GROUP)] for draw in range(draws)]


def least_seconds(groups: Sequence[Sequence[int]]) -> float:
    """The time that steps take at least because of their longest answers: the heaviest stretches without overlap."""
    ahead, steps = LAG + 1, len(groups) // BATCH
    stretches = []
    for draw, tokens in enumerate(groups):
        version = draw // BATCH
        begin, end = max(version - ahead + 1, 0), version + ahead
        if end <= steps:
            stretches.append((end, begin, max(tokens) / TOKENS_PER_S))
    stretches.sort()
    ends, best = [0], [0.0]
    for end, begin, seconds in stretches:
        total = best[bisect_right(ends, begin) - 1] + seconds
        if total > best[-1]:
            ends.append(end)
            best.append(total)
    return best[-1]


def measured(cell: Cell, seed: int, over_age: str = "wait") -> Run:
    """One run, and the bound for its draws."""
    with TemporaryDirectory() as folder:
        settings = recipe(cell, seed, folder, over_age)
        service, skipped = SimulatedService(settings, cell.actors), warm_up(settings)
        service.run(skipped + STEPS)
    found = figures_of(service.lines, skipped)
    seconds = service.lines[-1]["wall_s"] - service.lines[skipped - 1]["wall_s"]
    used = (service.slot_s[-1] - service.slot_s[skipped - 1]) / (seconds * cell.actors * cell.slots)
    groups = lengths(settings, (skipped + STEPS) * BATCH)
    work = sum(map(sum, groups)) / full_speed(cell)
    return Run(
        busy=used,
        speed=found.trained_per_s / full_speed(cell),
        bound=work / max(work, least_seconds(groups)),
        lag=found.lag,
        lag_max=found.lag_max,
        lost=service.lines[-1]["groups_stale_total"] / ((skipped + STEPS) * BATCH),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write the file; 1 if a token was too old or a group was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--over-age", choices=("wait", "mask", "drop"), default="wait")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    table = Table("engines", "slots", "sigma", "busy", "speed", "bound", "speed / bound", "lag", "lag max", "lost")
    cells: list[dict[str, Any]] = []
    for cell in CELLS:
        runs = [measured(cell, seed, given.over_age) for seed in range(given.seeds)]
        columns = (
            [one.busy for one in runs],
            [one.speed for one in runs],
            [one.bound for one in runs],
            [one.speed / one.bound for one in runs],
            [one.lag for one in runs],
        )
        lag_max = max(one.lag_max for one in runs)
        table.add_row(*map(str, cell), *map(spread, columns), str(lag_max), f"{max(one.lost for one in runs):.1%}")
        cells.append({**cell._asdict(), "runs": [one._asdict() for one in runs]})
    Console(width=160).print(table)
    if given.json:
        document = {"benchmark": "stragglers", "over_age": given.over_age, "cells": cells}
        measure.write(given.json, document, ("numpy",))
    lost = given.over_age == "wait" and any(run["lost"] for cell in cells for run in cell["runs"])
    return int(lost or any(run["lag_max"] > LAG for cell in cells for run in cell["runs"]))


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
