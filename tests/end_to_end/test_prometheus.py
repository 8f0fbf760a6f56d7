"""A real Prometheus watches a live run: every process answers, and every panel of every board has data.

Needs the programs of Debian's package prometheus. Nothing here needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from olmorl.deploy.grafana import build
from olmorl.deploy.grafana.panels import BOARDS
from olmorl.deploy.processes.prometheus import TARGETS_PATH

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "deploy" / "prometheus" / "prometheus.yml"
SETTINGS = """
[schedule]
steps = 2000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
[supervision]
backoff_s = 0.5
"""
CURRENT_S = 10.0
"""Within this time discovery follows a process that dies or starts."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        None in (shutil.which("prometheus"), shutil.which("promtool")),
        reason="prometheus is not installed (Debian: apt install prometheus)",
    ),
]
CAUSED = {"an embedded Redis"}
"""Events that this run has."""


class Prometheus:
    """One server on the loopback address, with the configuration of the repository and a shorter interval."""

    def __init__(self, folder: Path, targets: Path) -> None:
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [str(CONFIGURATION.parent / name) for name in configuration["rule_files"]]
        (job,) = configuration["scrape_configs"]
        job["file_sd_configs"] = [{"files": [str(targets)], "refresh_interval": "5s"}]
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"--web.listen-address={self.address}"], stdout=log, stderr=subprocess.STDOUT
            )

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer; None while the server starts."""
        try:
            with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except ConnectionRefusedError:
            return None
        except OSError:
            if self.process.poll() is not None:
                raise
            return None

    def health(self) -> dict[str, str]:
        """The health of each process, by its name."""
        found = self.ask("targets") or {"activeTargets": []}
        return {target["labels"]["process"]: target["health"] for target in found["activeTargets"]}

    def values(self, expr: str) -> list[Any]:
        """What a panel's query gives for this run and all its actors."""
        asked = expr.replace("$run", "test").replace("$actor", "actor.*")
        found: list[Any] = self.ask("query", query=asked)["result"]
        return found


@pytest.fixture
def watched(tmp_path: Path, simulate: Callable[[str], Any]) -> Iterator[tuple[Any, Prometheus]]:
    run = simulate(SETTINGS)
    run.start()
    run.until_step(1)
    prometheus = Prometheus(tmp_path / "prometheus", run.run_dir / "targets.json")
    yield run, prometheus
    prometheus.process.terminate()
    prometheus.process.wait(30)


def listed(run: Any) -> dict[str, str]:
    """The address of each process in the file of the discovery."""
    entries = json.loads((run.run_dir / "targets.json").read_text())
    return {entry["labels"]["process"]: entry["targets"][0] for entry in entries}


def read(address: str, path: str) -> bytes:
    with urlopen(f"http://{address}{path}", timeout=10) as answer:
        found: bytes = answer.read()
        return found


def test_prometheus_sees_everything_of_a_live_run(watched: tuple[Any, Prometheus]) -> None:
    run, prometheus = watched
    run.until(lambda: {"actor-0", "actor-1"} <= listed(run).keys())
    run.until(lambda: prometheus.health() == dict.fromkeys(listed(run), "up"), 60)
    assert {"launcher", "orchestrator", "learner-0", "learner-1", "redis"} <= listed(run).keys()
    over_http = json.loads(read(listed(run)["launcher"], TARGETS_PATH))
    assert over_http == json.loads((run.run_dir / "targets.json").read_text())
    for name, address in listed(run).items():
        check = ["promtool", "check", "metrics"]
        found = subprocess.run(check, input=read(address, "/metrics"), capture_output=True, check=False)
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b""), name

    before = listed(run)["actor-0"]
    os.kill(run.roster()["actor-0"]["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    run.until(lambda: listed(run).get("actor-0") != before)
    assert time.monotonic() - killed_at < CURRENT_S
    run.until(lambda: "actor-0" in listed(run))
    back_at = time.monotonic()
    run.until(lambda: prometheus.health() == dict.fromkeys(listed(run), "up"))
    assert time.monotonic() - back_at < CURRENT_S

    waits = {(board.title, panel.title, query) for board in BOARDS for panel in board.panels for query in panel.queries}
    deadline = time.monotonic() + 60

    def all_have_data() -> bool:
        for each in list(waits):
            if prometheus.values(each[2].expr):
                waits.discard(each)
        needed = [each for each in waits if not each[2].waits_for or each[2].waits_for in CAUSED]
        assert not needed or time.monotonic() < deadline, needed
        return not needed

    run.until(all_have_data)
    assert {each[2].waits_for for each in waits} <= {
        "an evaluation",
        "a draw that fails",
        "a judge or a reward model",
        "a real engine",
        "an alert",
    }
    (deaths,) = prometheus.values('olmorl_actor_deaths_total{run="$run"}')
    assert int(deaths["value"][1]) == 1
    for name, (_, expr) in build.ANNOTATIONS.items():
        assert isinstance(prometheus.values(expr), list), name
    assert len(prometheus.values(build.ANNOTATIONS["Checkpoints"][1])) == 1


def test_the_counters_of_a_resumed_run_are_those_of_its_lines(watched: tuple[Any, Prometheus]) -> None:
    run, prometheus = watched
    run.until_step(7)
    run.signal(signal.SIGKILL)
    run.wait()
    run.until_gone()
    before = run.lines()[-1]
    run.start("--resume")
    run.until(lambda: run.lines()[-1]["step"] > before["step"])
    run.until(lambda: prometheus.health().get("orchestrator") == "up")
    counters = ("groups_trained_total", "groups_zero_gradient_total", "tokens_trained_total", "tokens_generated_total")

    def agree() -> bool:
        line, found = run.lines()[-1], {}
        for name in counters:
            values = prometheus.values(f'olmorl_{name}{{run="$run",process="orchestrator"}}')
            found[name] = float(values[0]["value"][1]) if len(values) == 1 else None
        later = run.lines()[-1]
        return line == later and found == {name: line[name] for name in counters}

    run.until(agree, 60)
    # No series ever fell, not even over the restart: what the replay trained again was counted before.
    for name in counters:
        (fallen,) = prometheus.values(f'resets(olmorl_{name}{{run="$run",process="orchestrator"}}[5m])')
        assert fallen["value"][1] == "0", name
