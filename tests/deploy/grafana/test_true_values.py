"""The panels show what metrics.jsonl says, at steps of 2 to 2,000 seconds: a real Prometheus answers their queries.

The lines are those of a run in simulated time, stretched to the time of a step. The processes' own metrics are written
into Prometheus' storage at the times of its scrapes, so that hours pass at once. Needs Debian's package prometheus.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest

from olmorl import config
from olmorl.deploy.grafana import build
from olmorl.deploy.grafana.panels import BOARDS, WINDOW, GrafanaPanel, Query
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.processes.prometheus import Telemetry
from olmorl.deploy.supervision.run_health import RunHealth
from olmorl.messages import ActorStatus
from olmorl.metrics import prometheus_name

PRECISION = 0.05
ACTOR_TOKENS_PER_S = 700.0
CHECKS_PER_S = 3.0
PROCESSES = ("orchestrator", "launcher", "actor-0")
DRAWS = 2000
"""Draws that end with each step: so many that the quantiles of one step are sure."""
STEPS = {2: 120, 30: 24, 500: 16, 2000: 16}
"""Steps of a history, by the seconds of a step."""
EVENT_STEPS = 10
"""How long an event in the middle of a history takes, in usual steps."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        None in (shutil.which("prometheus"), shutil.which("promtool")),
        reason="prometheus is not installed (Debian: apt install prometheus)",
    ),
]
Line = Mapping[str, Any]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Line]:
    """The metric lines of a run in simulated time."""
    tree = {
        "run": {"directory": tmp_path_factory.mktemp("runs"), "name": "test", "mode": "simulated"},
        "sampling": {"group_size": 4, "max_tokens": 400},
        "schedule": {"steps": max(STEPS.values()), "prompts_per_step": 4, "max_lag": 2},
        "actors": {"max_running": 8},
        "checkpoint": {"every": 1000},
        "simulation": {"mean_tokens": 40.0, "train_tokens_per_s": 400.0, "learned_per_version": 0.0},
    }
    service = SimulatedService(config.build(tree), 2)
    service.run()
    return service.lines


def stretched(lines: Sequence[Line], step_s: float) -> list[dict[str, Any]]:
    """The lines, as those of a run whose steps take so many seconds."""
    factor = step_s * len(lines) / lines[-1]["wall_s"]

    def told(name: str, value: Any) -> Any:
        if value is None or not re.search(r"_s(_mean|_max)?$", name):
            return value
        return value / factor if name.endswith("_per_s") else value * factor

    return [{name: told(name, value) for name, value in line.items()} for line in lines]


class Course(NamedTuple):
    """The usual seconds of a step, and what happens in the middle: a pause, a long step or a resume."""

    step_s: int
    event: str = ""


COURSES = (
    *map(Course, STEPS),
    *(Course(30, event) for event in ("pause", "long step", "resume")),
    Course(500, "resume"),
)


class History:
    """What the processes of one run export at every scrape, and what is true of it."""

    def __init__(self, folder: Path, lines: Sequence[Line], course: Course) -> None:
        step_s, self.event = course
        self.lines = stretched(lines[: STEPS[step_s]], step_s)
        self.middle = len(self.lines) // 2
        """The number of the first line after the event."""
        event_s = EVENT_STEPS * step_s if self.event else 0
        down_s = event_s if self.event == "resume" else 0
        for line in self.lines[self.middle :]:
            line["wall_s"] += event_s - down_s
        self.began = time.time() - self.lines[-1]["wall_s"] - down_s - 60
        self.ends = [self.began + line["wall_s"] for line in self.lines]
        """When each line was written."""
        self.ends[self.middle :] = [at + down_s for at in self.ends[self.middle :]]
        self.down_at = self.ends[self.middle - 1] + 0.4 * step_s
        self.up_at = self.down_at + down_s
        random = np.random.default_rng(7)
        self.lengths = [np.ceil(random.lognormal(4.5, 0.8, DRAWS)) for _ in self.lines]
        self.verdicts = [random.lognormal(-8, 1.0, DRAWS) for _ in self.lines]
        self.lags = [random.choice(4, DRAWS, p=(0.4, 0.3, 0.2, 0.1)) for _ in self.lines]
        self.scrapes = self.while_up(np.arange(self.began, self.ends[-1], max(step_s / 12, 5.0)))
        self.window_s = 120.0
        self._write(folder)

    def while_up(self, times: np.ndarray, at_least_s: float = 0) -> np.ndarray:
        return times[(times < self.down_at) | (times >= self.up_at + at_least_s)]

    def _write(self, folder: Path) -> None:
        """Write everything that is scraped as a block of Prometheus."""
        parts = [self.scrapes]
        if self.event == "resume":
            parts = np.split(self.scrapes, [np.searchsorted(self.scrapes, self.up_at)])
        with (folder / "samples").open("w") as file:
            for scrapes in parts:
                self._write_start(file, folder, scrapes)
            file.write("# EOF\n")
        make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "samples"), str(folder / "data")]
        subprocess.run(make, check=True, capture_output=True)

    def _write_start(self, file: IO[str], folder: Path, scrapes: np.ndarray) -> None:
        """Write the scrapes of processes that start with the first and end with the last of them."""
        orchestrator, launcher, actor = processes = [Telemetry(name, "test", "127.0.0.1") for name in PROCESSES]
        settings = config.build({"run": {"directory": folder, "name": "test"}, "schedule": {"steps": len(self.lines)}})
        began = float(scrapes[0])
        health = RunHealth(settings, began)
        written = bisect_right(self.ends, began)
        health.note(written, began)
        orchestrator.restore(self.lines[:written])
        for at in scrapes:
            while written < len(self.lines) and self.ends[written] <= at:
                self._take(orchestrator, written)
                health.note(self.lines[written]["step"], self.ends[written])
                written += 1
            is_paused = self.event == "pause" and written == self.middle and at > self.down_at
            progress = health.progress(at, paused=is_paused)
            launcher.record({**progress, "actors_running": 1, "engine_devices": 1})
            file.writelines(exposed(orchestrator, at) + exposed(launcher, at))
        for at in np.arange(began, scrapes[-1], 20):
            actor.record_actor(self._heartbeat(at, at - began))
            file.writelines(exposed(actor, at))
        self.window_s = max(np.ceil(4 * progress["step_period_s_median"]), 120.0)
        for process in processes:
            process.close()

    def _take(self, orchestrator: Telemetry, number: int) -> None:
        orchestrator.record_line(self.lines[number])
        orchestrator._observe("completion_tokens", list(self.lengths[number]))
        orchestrator._observe("verification_s", list(self.verdicts[number]), {"verifier": "rules"})
        orchestrator._observe("token_lag_versions", list(self.lags[number]))

    def _heartbeat(self, at: float, up_s: float) -> ActorStatus:
        checks = {"outcomes.done": CHECKS_PER_S * up_s, "kills": 0.0}
        return ActorStatus(
            name="actor-0",
            at=at,
            tokens_generated=round(ACTOR_TOKENS_PER_S * up_s),
            up_s=up_s,
            busy_s=0.75 * up_s,
            verifiers={"rules": checks},
        )

    def newest(self, at: float) -> int:
        """The number of the newest line that Prometheus knows at this time."""
        scraped_at = self.scrapes[bisect_right(self.scrapes, at) - 1]
        return bisect_right(self.ends, scraped_at) - 1

    def scraped(self, number: int) -> float:
        """When a line is first known to Prometheus."""
        return float(self.scrapes[np.searchsorted(self.scrapes, self.ends[number])])

    def window(self, at: float) -> tuple[int, int]:
        """The numbers of the newest lines at the begin of the window and at its end. Nothing is known before a line."""
        first = self.scrapes[np.searchsorted(self.scrapes, at - self.window_s)]
        return max(self.newest(float(first)), 0), self.newest(at)


def labels(values: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())


def exposed(process: Telemetry, at: float) -> list[str]:
    """The lines of a scrape of our metrics at this time."""
    return [
        f"{sample.name}{{{labels(sample.labels)}}} {sample.value} {at}\n"
        for family in process.registry.collect()
        for sample in family.samples
        if sample.name.startswith("olmorl_")
    ]


class Prometheus:
    """A server of one storage, which scrapes nothing."""

    def __init__(self, folder: Path) -> None:
        (folder / "prometheus.yml").write_text("{}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("w") as log:
            command.append(f"--web.listen-address={self.address}")
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def ready(self) -> bool:
        try:
            return bool(self.ask("vector(1)", time.time()))
        except OSError:
            assert self.process.poll() is None
            return False

    def ask(self, expr: str, at: float) -> list[Any]:
        query = urlencode({"query": expr, "time": at})
        with urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
        return found

    def values(self, query: Query, at: float, window_s: float) -> dict[str, float]:
        """What a query of a panel gives, by the legend of each line."""
        expr = query.expr.replace("$run", "test").replace("$actor", "actor.*").replace(WINDOW, f"{window_s:.0f}s")

        def legend(labels: Mapping[str, str]) -> str:
            return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), query.legend)

        return {legend(found["metric"]): float(found["value"][1]) for found in self.ask(expr, at)}


@pytest.fixture(scope="module", params=COURSES, ids=lambda course: f"{course.step_s}s {course.event}".strip())
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, lines: Sequence[Line]
) -> Iterator[tuple[History, Prometheus]]:
    folder = tmp_path_factory.mktemp("history")
    history = History(folder, lines, request.param)
    prometheus = Prometheus(folder)
    try:
        deadline = time.monotonic() + 30
        while not prometheus.ready():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield history, prometheus
    finally:
        prometheus.process.terminate()
        prometheus.process.wait(30)


def by_step(query: Query, history: History, at: float) -> dict[str, float] | None:
    """What a query over counters of lines has to give: their growth over wall time. None for other queries."""
    found = re.match(r".*?increase\((olmorl_\w+?)\{.*delta\(olmorl_wall_seconds", query.expr)
    if not found:
        return None
    first, last = (history.lines[number] for number in history.window(at))
    seconds = last["wall_s"] - first["wall_s"]
    if not seconds:
        return {}
    factor = 60 if query.expr.startswith("60 *") else 1
    flat = {prometheus_name(name): name for name in last if name.endswith("_total")}
    if (name := flat.get(found[1])) is not None:
        return {query.legend: factor * (last[name] - first[name]) / seconds}
    if found[1] == "olmorl_tokens_by_outcome_total":
        outcomes = ("trained", "zero_gradient", "stale", "masked", "failed", "lost")
        totals = {outcome: f"tokens_{outcome}_total" for outcome in outcomes}
        return {outcome: (last[name] - first[name]) / seconds for outcome, name in totals.items()}
    of_lines = {"olmorl_source_groups_total": "source_simulated_groups"}
    field = of_lines.get(found[1])
    if field is None:
        return {}
    numbers = range(history.window(at)[0] + 1, history.window(at)[1] + 1)
    return {"simulated": factor * sum(history.lines[number][field] for number in numbers) / seconds}


def quantiles(query: Query, history: History, at: float) -> dict[str, float] | None:
    """What a query over a histogram has to give. None for other queries."""
    found = re.match(r"histogram_quantile\((\S+), .*olmorl_(\w+)_bucket", query.expr)
    if not found:
        return None
    of_steps = {
        "completion_tokens": history.lengths,
        "verification_seconds": history.verdicts,
        "token_lag_versions": history.lags,
    }.get(found[2])
    if of_steps is None:
        return {}
    first, last = history.window(at)
    if history.event == "resume" and at - history.window_s > history.down_at:
        first = max(first, history.middle)  # the values of the first line after a start are there from the beginning
    if first >= last:
        return {}
    values = np.concatenate(of_steps[first + 1 : last + 1])
    legend = query.legend.replace("{{verifier}}", "rules")
    return {legend: float(np.quantile(values, float(found[1]), method="inverted_cdf"))}


STEADY: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("olmorl-actors", "Tokens a second"): {"actor-0": ACTOR_TOKENS_PER_S},
    ("olmorl-actors", "Busy share"): {"actor-0": 0.75},
    ("olmorl-verifiers", "Outcomes of checks, per second"): {"rules done": CHECKS_PER_S},
}
"""Panels of what goes on all the time, and the values that they have to give."""


def truth(board: str, panel: GrafanaPanel, query: Query, history: History, at: float) -> Mapping[str, float] | None:
    """The true values of a query, by the legends of its lines. None: it is not known here."""
    line = history.lines[history.newest(at)]
    fields: dict[str, Callable[[], float | None]] = {
        f'{prometheus_name(name)}{{run="$run",process="orchestrator"}}': lambda name=name: line[name]  # type: ignore[misc]
        for name in line
    }
    if query.expr in fields:
        if history.event == "resume" and history.up_at <= at < history.scraped(history.middle):
            return {}  # its first line has yet to come
        value = fields[query.expr]()
        return {query.legend: value} if value is not None else None
    for known in (by_step, quantiles):
        if (found := known(query, history, at)) is not None:
            return found
    return STEADY.get((board, panel.title))


def test_every_panel_says_what_the_lines_say_or_its_window(watched: tuple[History, Prometheus]) -> None:
    history, prometheus = watched
    compared = set()
    begin, end = history.scraped(1) + 60, history.scrapes[-1]
    # Times that fall on no scrape, as those of a browser. A rate of a minute is not known before.
    for at in history.while_up(np.linspace(begin, end, 14), 60):
        for board in BOARDS:
            for panel in board.panels:
                for query in panel.queries:
                    true = truth(board.uid, panel, query, history, float(at))
                    if true is None:
                        assert "[" not in query.expr or " Over " in build._description(panel), panel.title
                        continue
                    shown = prometheus.values(query, float(at), history.window_s)
                    for legend, value in true.items():
                        where = (board.uid, panel.title, legend, query.expr)
                        assert shown[legend] == pytest.approx(value, rel=PRECISION, abs=1e-9), where
                        compared.add((board.uid, panel.title))
    assert len(compared) > 30
    stalls = prometheus.values(Query('olmorl_weight_stall_seconds_mean{run="$run"}', "mean"), end, 0)
    longest = prometheus.values(Query('olmorl_weight_stall_seconds_max{process="orchestrator"}', "longest"), end, 0)
    assert stalls["mean"] <= longest["longest"]


def test_the_window_of_the_boards_follows_the_step_time(watched: tuple[History, Prometheus]) -> None:
    history, prometheus = watched
    expr = build.WINDOW_QUERY.replace("${__range_s}", "3600").replace("$run", "test")
    (found,) = prometheus.ask(expr, float(history.scrapes[-1]))
    # The first step is longer, because engines start empty.
    assert history.window_s <= float(found["value"][1]) < 2 * history.window_s
    (nothing,) = prometheus.ask(expr.replace("test", "another"), float(history.scrapes[-1]))
    assert nothing == {"metric": {}, "value": [nothing["value"][0], "120"]}
