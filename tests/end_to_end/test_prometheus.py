"""A real Prometheus watches a live run: every process answers, and every panel of every board has data.

A browser draws each panel from the same queries.

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
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from olmorl import metrics
from olmorl.deploy.control.endpoint import send_command
from olmorl.deploy.grafana import build
from olmorl.deploy.grafana.panels import BOARDS, FAULTS, GrafanaBoard, Query
from olmorl.deploy.processes.prometheus import TARGETS_PATH
from tests.deploy.grafana.board_page import WINDOW, BoardPage

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "deploy" / "prometheus" / "prometheus.yml"
SETTINGS = """
[schedule]
steps = 2000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
"""
REAL = """
[sampling]
group_size = 4
max_tokens = 32
[schedule]
steps = 2000
prompts_per_step = 4
max_lag = 2
[evaluation]
data = ["{folder}/held.jsonl"]
every = 2
limit = 4
[verifiers.judge]
url = "http://127.0.0.1:9/v1"
model = "nobody"
timeout_s = 0.2
"""
CURRENT_S = 60.0
"""Within this time discovery follows a process that dies or starts."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        None in (shutil.which("prometheus"), shutil.which("promtool")),
        reason="prometheus is not installed (Debian: apt install prometheus)",
    ),
]


class Prometheus:
    """One server on the loopback address, with the configuration of the repository and a shorter interval."""

    def __init__(self, folder: Path, targets: str) -> None:
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        configuration["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
        configuration["rule_files"] = [str(CONFIGURATION.parent / name) for name in configuration["rule_files"]]
        (job,) = configuration["scrape_configs"]
        if targets.startswith("http://"):
            del job["file_sd_configs"]
            job["http_sd_configs"] = [{"url": targets, "refresh_interval": "1s"}]
        else:
            job["file_sd_configs"] = [{"files": [targets], "refresh_interval": "5s"}]
        self.folder = folder
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
        except HTTPError as error:
            starts = error.code == HTTPStatus.SERVICE_UNAVAILABLE
            assert starts, (query, error.read().decode())
            return None
        except OSError:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return None

    def health(self) -> dict[str, str]:
        """The health of each process, by its name."""
        found = self.ask("targets") or {"activeTargets": []}
        return {target["labels"]["process"]: target["health"] for target in found["activeTargets"]}

    def values(self, expr: str) -> list[Any]:
        """What a panel's query gives for this run and all its actors."""
        asked = expr.replace("$run", "test").replace("$actor", "actor.*").replace("${window}", WINDOW)
        answer = self.ask("query", query=asked)
        return answer["result"] if answer else []


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Starts a Prometheus for a run."""
    made: list[Prometheus] = []

    def start(run: Any, targets: str = "") -> Prometheus:
        made.append(Prometheus(tmp_path / "prometheus", targets or str(run.run_dir / "targets.json")))
        return made[-1]

    yield start
    for prometheus in made:
        prometheus.process.terminate()
        prometheus.process.wait(60)


@pytest.fixture
def watched(simulate: Callable[[str], Any], watch: Callable[..., Prometheus]) -> tuple[Any, Prometheus]:
    run = simulate(SETTINGS)
    run.start()
    run.until_step(1)
    return run, watch(run)


def all_queries() -> list[tuple[str, str, Query]]:
    """Every query of every board, with the titles of its board and its panel."""
    return [(board.title, panel.title, query) for board in BOARDS for panel in board.panels for query in panel.queries]


def until_panels_have_data(run: Any, prometheus: Prometheus, events: set[str], seconds: float = 60) -> None:
    """Until every query that waits for one of these events has had data."""
    waits = {each for each in all_queries() if each[2].waits_for in events}
    deadline = time.monotonic() + seconds

    def have_data() -> bool:
        for each in list(waits):
            if prometheus.values(each[2].expr):
                waits.discard(each)
        assert not waits or time.monotonic() < deadline, waits
        return not waits

    run.until(have_data)


def draw_all(
    browser: Any, prometheus: Prometheus, boards: Sequence[GrafanaBoard], but_not: Set[str] = frozenset()
) -> None:
    """Draw every panel of these boards. Only queries that wait for one of the events `but_not` may have no data."""
    may_be_empty = {query.expr for _, _, query in all_queries() if query.waits_for in but_not}
    page = BoardPage(browser, prometheus.address, "test")
    for board in boards:
        panels = page.draw(board, 300)
        assert [panel.title for panel in panels] == [panel.title for panel in board.panels]
        for panel in panels:
            assert not set(panel.empty) - may_be_empty, panel
            is_drawn = panel.lines > 0 and panel.drawn in (1, panel.lines)
            assert is_drawn or panel.empty, panel
    page.close()


def listed(run: Any) -> dict[str, str]:
    """The address of each process in the file of the discovery."""
    entries = json.loads((run.run_dir / "targets.json").read_text())
    return {entry["labels"]["process"]: entry["targets"][0] for entry in entries}


def read(address: str, path: str) -> bytes:
    with urlopen(f"http://{address}{path}", timeout=10) as answer:
        found: bytes = answer.read()
        return found


def deaths(prometheus: Prometheus) -> int:
    """Deaths of actors, as Prometheus saw them last."""
    (found,) = prometheus.values('olmorl_actor_deaths_total{run="$run"}')
    return int(found["value"][1])


def test_prometheus_sees_everything_of_a_live_run(watched: tuple[Any, Prometheus], chromium: Any) -> None:
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

    until_panels_have_data(run, prometheus, {"", "an embedded Redis", "the first steps"})
    run.until(lambda: deaths(prometheus) > 0)
    assert deaths(prometheus) == 1
    run.until(lambda: prometheus.values(build.ANNOTATIONS["Checkpoints"][1]))
    assert prometheus.values(build.ANNOTATIONS["Faults"][1])

    def dies_again() -> bool:
        process = run.roster().get("actor-0")
        if process and "actor-0" in listed(run):
            with suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)
        return bool(prometheus.values("olmorl_actors_quarantined > 0"))

    run.until(dies_again)
    until_panels_have_data(run, prometheus, {"an alert"})
    assert "ActorsQuarantined" in {each["metric"]["alertname"] for each in prometheus.values("ALERTS")}
    draw_all(chromium, prometheus, [FAULTS])


def test_a_run_that_fails_alerts(watched: tuple[Any, Prometheus]) -> None:
    run, prometheus = watched
    run.until(lambda: prometheus.values('olmorl_run_failed{run="$run"} == 0'))
    serving = prometheus.values('olmorl_actors_serving{run="$run"}')
    assert serving and serving[0]["value"][1] == "2"
    began = time.monotonic()
    while run.process.poll() is None:
        for name, process in run.roster().items():
            if name.startswith("actor"):
                with suppress(ProcessLookupError):
                    os.kill(process["pid"], signal.SIGKILL)
        assert time.monotonic() - began < 120, run.output()
        time.sleep(0.2)
    assert run.wait() == 1
    run.until_gone()
    assert "waiting up to" in run.output()
    (failed,) = prometheus.values('max by (run) (max_over_time(olmorl_run_failed{run="$run"}[5m]))')
    assert failed["value"][1] == "1"
    deadline = time.monotonic() + 90
    while not prometheus.values('ALERTS{alertname="RunFailed",alertstate="firing",run="$run"}'):
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_run_that_ends_in_order_leaves_no_target_and_no_alert(
    simulate: Callable[[str], Any], watch: Callable[..., Prometheus]
) -> None:
    """A discovery over HTTP keeps the last list that it got, and its launcher no longer answers."""
    run = simulate(SETTINGS)
    run.start()
    run.until_step(1)
    prometheus = watch(run, f"http://{listed(run)['launcher']}{TARGETS_PATH}")
    run.until(lambda: prometheus.health() == dict.fromkeys(listed(run), "up"), 60)
    run.signal(signal.SIGTERM)
    assert run.wait(60) == 0, run.output()
    time.sleep(5)
    assert prometheus.health() == {}
    assert prometheus.values('ALERTS{alertname=~"RunFailed|ProcessSilent"}') == []


@pytest.mark.engine
def test_the_panels_that_wait_for_an_event_have_data_after_it(
    tmp_path: Path, launch: Callable[[str], Any], watch: Callable[..., Prometheus], chromium: Any
) -> None:
    run = launch(REAL.format(folder=tmp_path))
    held = [json.dumps({"prompt": f"count to {number}", "n": number}) for number in range(4)]
    (tmp_path / "held.jsonl").write_text("\n".join(held))
    judged = {"prompt": "say why", "ground_truth": "because", "dataset": "general-quality_ref"}
    with (tmp_path / "data.jsonl").open("a") as data:
        data.writelines([json.dumps(judged) + "\n"] * 200)
    run.start()
    run.until_step(1, 400)
    prometheus = watch(run)
    events = {"an evaluation", "a draw that fails", "a judge, a reward model or a teacher", "a real engine"}
    others = {"", "an embedded Redis", "the first steps"}
    absent = {"an alert", "a teacher", "an episode", "a call of a tool"}
    assert {query.waits_for for _, _, query in all_queries()} == absent | others | events
    until_panels_have_data(run, prometheus, events | others, 120)
    draw_all(chromium, prometheus, BOARDS, but_not=absent)
    logs = [log.read_text() for log in (run.run_dir / "logs").glob("*.log")]
    assert not any("is not exported to Prometheus" in log for log in logs)


def test_the_counters_of_a_resumed_run_are_those_of_its_lines(watched: tuple[Any, Prometheus]) -> None:
    run, prometheus = watched
    run.until_step(7)
    run.signal(signal.SIGKILL)
    run.wait()
    run.until_gone()
    before = run.lines()[-1]
    run.start("--resume")
    run.until(lambda: run.lines()[-1]["step"] > before["step"])
    send_command(run.run_dir, "pause")
    counters = [name for name in metrics.TOTALS if name.endswith("_total")]
    groups = 'olmorl_source_groups_total{run="$run",source="simulated"}'

    def agree() -> bool:
        lines = run.lines()
        wanted = {f'olmorl_{name}{{run="$run",process="orchestrator"}}': lines[-1][name] for name in counters}
        wanted[groups] = sum(line["source_simulated_groups"] for line in lines)
        found = {query: [float(each["value"][1]) for each in prometheus.values(query)] for query in wanted}
        return found == {query: [value] for query, value in wanted.items()}

    run.until(agree, 60)
    # No series ever fell, not even over the restart: what the replay trained again was counted before.
    for name in counters:
        (fallen,) = prometheus.values(f'resets(olmorl_{name}{{run="$run",process="orchestrator"}}[5m])')
        assert fallen["value"][1] == "0", name
