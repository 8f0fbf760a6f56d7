"""All telemetry together: groups per second and CPU per group of a run, with it and without, in turns.

    python benchmarks/telemetry.py --json benchmarks/results/telemetry.json

A run of `benchmarks/control_plane.py`: the service's orchestrator and loop, actors in two processes, Redis. Engines
and learner only take time. Telemetry is Prometheus in each process, a scrape of all of them every five seconds, JSON
logs, the status for the live view twice a second with the verdict, TensorBoard, and a trace for each group. Its two
tracking processes are the row `trackers`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import control_plane
import measure
import psutil
from control_plane import Case, Watch

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.log_files import logged
from olmorl.deploy.processes.prometheus import Telemetry
from olmorl.deploy.tracking.tracking import Tracking
from olmorl.deploy.view.run_history import sample_of
from olmorl.deploy.view.verdict import Shape, VerdictWindow
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage.rollout_record import Ended
from olmorl.ports import Queue

SCRAPE_S = 5.0
"""As in `deploy/prometheus/prometheus.yml`."""
STATUS_S = 0.5
HEARTBEAT_S = 1.0
ACTORS, OFFERED, TOKENS, BATCH, SECONDS = 20, 40.0, 128, 64, 15.0
"""As many actors as the 32B recipe. 41,000 tokens a second in short answers, so 40 groups a second: many of them."""


class Telemetered(Watch):
    """Everything that the process of the orchestrator tells others."""

    def __init__(self, recipe: config.Config, telemetry: Telemetry, tracking: Tracking) -> None:
        self.totals: list[tuple[float, int]] = []
        """CPU seconds of the tracking processes and trained groups, at each line."""
        self._trackers = [psutil.Process(process.pid) for process in psutil.Process().children() if is_tracker(process)]
        self._telemetry = telemetry
        self._tracking = tracking
        self._verdicts = VerdictWindow(Shape.of(recipe))

    def add_line(self, line: Mapping[str, Any]) -> None:
        self._telemetry.record_line(line)
        self._tracking.add_line(line)
        self._verdicts.add([line])
        self._telemetry.record_verdict(self._verdicts.latest)
        cpu = sum(sum(process.cpu_times()[:2]) for process in self._trackers)
        self.totals.append((cpu, int(line["groups_trained_total"])))

    def add_ended(self, ended: Ended) -> None:
        self._telemetry.record_ended(ended)
        self._tracking.add_ended(ended, sample_of(ended))

    async def look(self, orchestrator: Orchestrator, queue: Queue) -> None:
        while True:
            await orchestrator.progress()
            await queue.statuses()
            await asyncio.sleep(STATUS_S)


def is_tracker(process: psutil.Process) -> bool:
    return "olmorl.deploy.tracking.tracking_process" in process.cmdline()


tracker_ms: list[float] = []
"""CPU milliseconds of the tracking processes per group, of each run with telemetry."""


@contextmanager
def telemetered(recipe: config.Config) -> Iterator[Watch]:
    """All telemetry of a run, its collector and its scraper."""
    spawn = multiprocessing.get_context("spawn")
    address = spawn.Queue()
    outside = [spawn.Process(target=collect, args=(address,)), spawn.Process(target=scrape, args=(recipe.run_dir,))]
    for process in outside:
        process.start()
    telemetry = Telemetry("orchestrator", "r", "127.0.0.1")
    (recipe.run_dir / "orchestrator.address").write_text(telemetry.address)
    tracked = recipe.model_copy(update={"telemetry": recipe.telemetry.model_copy(update={"tracker": "tensorboard"})})
    tracking = Tracking(tracked, {"OTEL_EXPORTER_OTLP_ENDPOINT": address.get(timeout=60)})
    while sum(map(is_tracker, psutil.Process().children())) < 2:
        time.sleep(0.1)
    watch = Telemetered(recipe, telemetry, tracking)
    try:
        with logged(recipe.run_dir, "orchestrator"):
            yield watch
        (before, first), (after, last) = watch.totals[2], watch.totals[-1]
        tracker_ms.append(1000 * (after - before) / (last - first))
    finally:
        tracking.close()
        telemetry.close()
        for process in outside:
            process.kill()
            process.join()
    if tracking.num_dropped:
        raise RuntimeError(f"{tracking.num_dropped} points were dropped: this measures too little")


def act(recipe: config.Config, access: QueueAccess, names: Sequence[str]) -> None:
    """A process of actors with their metrics. It is ended by the benchmark."""
    telemetry = Telemetry(names[0], "r", "127.0.0.1")
    (recipe.run_dir / f"{names[0]}.address").write_text(telemetry.address)

    async def main() -> None:
        queues = [await wiring.open_queue(recipe, access) for _ in names]
        actors = [wiring.actor(recipe, name, None, queue, "") for name, queue in zip(names, queues, strict=True)]

        async def publish() -> None:
            while True:
                for actor in actors:
                    telemetry.record_actor(actor.status())
                await asyncio.sleep(HEARTBEAT_S)

        await asyncio.gather(publish(), *(actor.run() for actor in actors))

    with suppress(KeyboardInterrupt), logged(recipe.run_dir, names[0]):
        asyncio.run(main())


def scrape(folder: Path) -> None:
    """Ask every process for its metrics, as Prometheus does."""
    os.nice(10)
    while True:
        for file in folder.glob("*.address"):
            with suppress(OSError, ValueError), urlopen(f"http://{file.read_text()}/metrics", timeout=5) as answer:
                answer.read()
        time.sleep(SCRAPE_S)


def collect(address: Any) -> None:
    """Take traces and forget them."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    os.nice(10)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address.put(f"http://127.0.0.1:{server.server_address[1]}")
    server.serve_forever()


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    """Measures one run with and one without telemetry, in an order that changes."""
    case = Case(ACTORS, OFFERED, SECONDS / 3 if quick else SECONDS, TOKENS, BATCH)
    turns = 0

    def repeat() -> measure.Values:
        nonlocal turns
        turns += 1
        found = {}
        for on in (True, False) if turns % 2 else (False, True):
            one = control_plane.run_case(case, act, telemetered) if on else control_plane.run_case(case)
            found["with" if on else "without"] = one.groups_per_s
            found["orchestrator, with" if on else "orchestrator, without"] = one.orchestrator_ms
            found["actors, with" if on else "actors, without"] = one.actors_ms
            found["Redis, with" if on else "Redis, without"] = one.redis_ms
        return {**found, "trackers": tracker_ms[-1]}

    yield repeat


_PARTS = ("orchestrator", "actors", "Redis")
BENCHMARK = measure.Benchmark(
    name="telemetry",
    title="A run with all telemetry and without",
    units={"with": "groups/s", "without": "groups/s"}
    | {f"{part}, {how}": "CPU ms/group" for part in _PARTS for how in ("with", "without")}
    | {"trackers": "CPU ms/group"},
    ratio=("with", "without"),
    target=0.99,
    prepare=prepare,
    packages=("prometheus-client", "tensorboard", "opentelemetry-sdk"),
    repetitions=5,
)


if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
