"""Active sampling: groups generated for each trained group, against the least possible and against oversampling.

    python benchmarks/active_sampling.py --json benchmarks/results/active_sampling.json

Whole finite runs in simulated time. A group trains when its rewards differ. With a solve rate p of its prompt, that has
the probability P = 1 - p^G - (1 - p)^G, so N trained groups need N / mean(P) generated ones: `least`, computed from the
prompts of the run. All draws of the run count as generated, also those that are unfinished at its end.

Oversampling is DAPO's: each step generates three batches, and three more until a batch is full; the rest is lost.
`last step` is the time of the last step over the median one: it grows when the last groups are drawn one after another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
import numpy as np
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.actors.fake_answers import solve_rate
from olmorl.deploy.plan.simulated_service import SimulatedService, simulated_rows

ENGINES, SLOTS, BATCH, GROUP, LAG, STEPS = 4, 16, 16, 8, 4, 30
MEAN_TOKENS, SIGMA, TOKENS_PER_S = 60.0, 0.7, 60.0
LEARNER = 4.0
"""Speed of the learner over that of all engines."""
OVERSAMPLED = 3
"""Batches that oversampling generates at one time."""
SOLVE_RATES = (0.5, 0.9, 0.1)


class Run(NamedTuple):
    """One run: groups for each trained group."""

    generated: float
    least: float
    oversampling: float
    last_step: float
    """Time of the last step over the median step's."""

    @property
    def over_least(self) -> float:
        return self.generated / self.least


def recipe(rate: float, lag: int, seed: int, folder: str) -> config.Config:
    """The recipe of a run."""
    speed = ENGINES * SLOTS * TOKENS_PER_S / (1 + 0.01 * (SLOTS - 1))
    return config.build(
        {
            "run": {"directory": folder, "name": "active-sampling", "mode": "simulated", "seed": seed},
            "data": {"shuffle": False},
            "sampling": {"group_size": GROUP, "max_tokens": int(100 * MEAN_TOKENS)},
            "schedule": {"steps": STEPS, "prompts_per_step": BATCH, "max_lag": lag},
            "actors": {"max_running": SLOTS},
            "checkpoint": {"every": STEPS},
            "simulation": {
                "tokens_per_s": TOKENS_PER_S,
                "mean_tokens": MEAN_TOKENS,
                "tail": SIGMA,
                "solve_rate": rate,
                "learned_per_version": 0,
                "train_tokens_per_s": LEARNER * speed,
            },
        }
    )


def chances(settings: config.Config, draws: int) -> list[float]:
    """The probability of a gradient, for the prompts of the first draws."""
    rates = [solve_rate(settings.simulation, row.token_ids, 0) for row in simulated_rows(draws)]
    return [1 - rate**GROUP - (1 - rate) ** GROUP for rate in rates]


def oversampled(prompts: Sequence[float], seed: int) -> float:
    """Groups that oversampling generates for each trained one, with prompts like these."""
    random, generated = Random(seed), 0
    for _ in range(STEPS):
        useful = 0
        while useful < BATCH:
            useful += sum(random.random() < random.choice(prompts) for _ in range(OVERSAMPLED * BATCH))
            generated += OVERSAMPLED * BATCH
    return generated / (STEPS * BATCH)


def measured(rate: float, lag: int, seed: int) -> Run:
    """One run."""
    with TemporaryDirectory() as folder:
        settings = recipe(rate, lag, seed, folder)
        service = SimulatedService(settings, ENGINES)
        service.run()
    drawn, ended = int(service.lines[-1]["prompts_drawn_total"]), [line["wall_s"] for line in service.lines]
    prompts, steps = chances(settings, drawn), np.diff(ended)
    return Run(
        drawn / (STEPS * BATCH), 1 / mean(prompts), oversampled(prompts, seed), float(steps[-1]) / float(median(steps))
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lags", type=int, nargs="+", default=[LAG])
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    table = Table("solve rate", "max_lag", "least", "generated", "over least (range)", "oversampling", "last step")
    cells: list[dict[str, Any]] = []
    for lag in given.lags:
        for rate in SOLVE_RATES:
            runs = [measured(rate, lag, seed) for seed in range(given.seeds)]
            over, last = [run.over_least for run in runs], [run.last_step for run in runs]
            table.add_row(
                f"{rate}",
                str(lag),
                f"{median(run.least for run in runs):.2f}",
                f"{median(run.generated for run in runs):.2f}",
                f"{median(over):.3f} ({min(over):.3f}-{max(over):.3f})",
                f"{median(run.oversampling / run.least for run in runs):.2f}",
                f"{median(last):.2f} ({min(last):.2f}-{max(last):.2f})",
            )
            cells.append({"solve_rate": rate, "max_lag": lag, "runs": [run._asdict() for run in runs]})
    Console(width=140).print(table)
    if given.json:
        measure.write(given.json, {"benchmark": "active_sampling", "cells": cells}, ("numpy",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
