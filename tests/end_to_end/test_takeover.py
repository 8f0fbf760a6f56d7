"""A launcher killed on a cluster: training continues, a new launcher takes over, and without one the run ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.launching import ROOT
from tests.end_to_end.leftovers import until_clean, unused

SETTINGS = """
[schedule]
steps = {steps}
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
[supervision]
launcher_deadline_s = {launcher_deadline_s}
patience = 0.5
"""
START_DEADLINE_S = 120
EVERYBODY = 8
"""Launcher, Redis and its keeper, orchestrator, two ranks, two actors."""
LEFT = """
import json, ray, sys
from ray.util import list_named_actors, placement_group_table
ray.init(address=sys.argv[1], log_to_driver=False)
groups = [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
print(json.dumps([*groups, *(actor["name"] for actor in list_named_actors(all_namespaces=True))]))
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


class Ray:
    """A cluster of one host, on its loopback address, which was there before the run and stays after it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def left(self) -> list[str]:
        """Named actors and placement groups."""
        command = [sys.executable, "-c", LEFT, self.address]
        found: list[str] = json.loads(subprocess.check_output(command, cwd=ROOT, text=True).splitlines()[-1])
        return found

    def workers(self) -> list[str]:
        """Names of the run's processes under Ray."""
        names = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                names.append(process.name())
            except psutil.NoSuchProcess:
                continue
        of_runs = (
            "ray::RankProcess",
            "ray::RedisProces",
            "ray::ActorProces",
            "ray::Orchestrato",
            "ray::Board",
            "redis-server",
            "valkey-server",
        )
        return [name for name in names if name.startswith(of_runs)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    output = tmp_path_factory.mktemp("ray") / "output.txt"
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=8", f"--port={port}"),
        *("--node-ip-address=127.0.0.1", "--include-dashboard=false", "--object-store-memory=200000000"),
    ]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    give_up = time.monotonic() + START_DEADLINE_S
    while "Ray runtime started" not in output.read_text():
        assert process.poll() is None and time.monotonic() < give_up, output.read_text()
        time.sleep(0.1)
    yield Ray(process, f"127.0.0.1:{port}")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        with suppress(psutil.NoSuchProcess):  # with their parent
            each.kill()
    process.wait()
    noted = Path("/tmp/ray/ray_current_cluster")  # whom address="auto" means
    if noted.exists() and noted.read_text().endswith(f":{port}"):
        noted.unlink()


def until(ready: Callable[[], object], run: Any, timeout_s: float = 120) -> None:
    """Until something holds, without a launcher."""
    give_up = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < give_up, run.output()
        time.sleep(0.1)


def kill_launcher(run: Any) -> int:
    """Returns the steps done by then."""
    run.signal(signal.SIGKILL)
    run.wait()
    return len(run.lines())


def test_a_run_goes_on_without_its_launcher_until_another_takes_over(
    cluster: Ray,
    simulate: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
) -> None:
    before = unused()
    run = simulate(SETTINGS.format(steps=1000, launcher_deadline_s=2.0))
    run.start("--ray-address", cluster.address)
    run.until_step(3)
    run.until(lambda: len(run.roster()) == EVERYBODY)
    pids = {name: entry["pid"] for name, entry in run.roster().items() if name != "launcher"}
    steps = kill_launcher(run)
    run.start("--ray-address", cluster.address)
    assert run.wait() == 2
    assert "--resume" in run.output()
    until(lambda: len(run.lines()) >= steps + 6, run)
    assert all(psutil.pid_exists(pid) for pid in pids.values())
    assert {line["incarnation"] for line in run.lines()} == {1}

    run.start("--ray-address", cluster.address, "--resume")
    run.until(lambda: run.lines()[-1]["incarnation"] == 2)
    run.until_step(len(run.lines()) + 2)
    assert "go on without a launcher" in run.output() and "they have stopped" in run.output()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    # As many as before, and the board of the weights.
    until(lambda: len(cluster.workers()) == len(pids) + 1, run)

    run.signal(signal.SIGINT)
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), 2)
    assert cluster.left() == [] and cluster.workers() == []
    until_clean(run, before)


def test_who_finds_no_launcher_ends_when_the_learner_is_done(
    cluster: Ray,
    simulate: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
) -> None:
    run = simulate(SETTINGS.format(steps=6, launcher_deadline_s=2.0))
    run.start("--ray-address", cluster.address)
    run.until_step(2)
    kill_launcher(run)
    until(lambda: len(run.lines()) == 6, run)
    until(lambda: cluster.workers() == [], run)
    assert cluster.left() == []
    assert "there was no launcher, and no learner that trains" in (run.run_dir / "logs" / "actor-0.log").read_text()

    run.start("--ray-address", cluster.address, "--resume")
    assert run.wait() == 0, run.output()
    check_history(run, 6, 2)


def test_two_signals_end_everything_at_once(cluster: Ray, simulate: Callable[[str], Any]) -> None:
    run = simulate("save_s = 60.0\n" + SETTINGS.format(steps=1000, launcher_deadline_s=600.0))
    run.start("--ray-address", cluster.address)
    run.until_step(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        run.signal(number)  # one order by two ways, as from a scheduler and from the script that it runs
        time.sleep(0.2)  # Python handles signals that are pending together in the order of their numbers
    run.until(lambda: "stopping" in run.output())
    time.sleep(2.0)
    assert run.process.poll() is None, "it writes its checkpoint"
    run.signal(signal.SIGINT)
    assert run.wait() == 143, run.output()
    assert cluster.left() == [] and cluster.workers() == []
