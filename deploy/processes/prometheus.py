"""Serves the Prometheus metrics of each process. The one file with prometheus-client.

`olmorl.metrics` has every name, its meaning, its labels and its buckets. Other names are not exported.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, MetricsHandler
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from olmorl import metrics
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict
from olmorl.errors import ResourceError
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import ActorStatus, Group
from olmorl.metrics import prometheus_name

log = logging.getLogger(__name__)
_BUSY = {"seconds": "busy_s"}
"""`verifier_s_total` is already the time that all verdicts took."""
_GAUGES = ("queue_depth", "breaker_open")
_EPISODES = {"processes": "environment_processes", "failures": "episode_failures_total"}
_OTHER = "other"
_MOST_UNCOUNTED = 10_000
"""The most values that a histogram keeps between two scrapes. At more it counts them without a scrape."""
_OF_PROMETHEUS = "X-Prometheus-Scrape-Timeout-Seconds"
"""The header of every scrape."""
_OF_DISCOVERY = "X-Prometheus-Refresh-Interval-Seconds"
"""The header of every request of its discovery."""
_LONGEST_WAIT_S = 60.0
Labels = Mapping[str, str]
Weights = npt.NDArray[np.float64]
Entries = Sequence[Mapping[str, Any]]
TARGETS_PATH = "/targets"


class Telemetry:
    """The metrics of one process: gauges take the last value, counters never decrease. A failure stops no run."""

    def __init__(
        self, process: str, run: str, host: str, port: int = 0, targets: Callable[[], Entries] | None = None
    ) -> None:
        """Serve at `host`, the address that the run uses.

        Args:
            port: 0: a free one.
            targets: all processes of the run, served at `TARGETS_PATH` for Prometheus' discovery over HTTP.

        Raises:
            ResourceError: the port is taken.
        """
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_EngineMetrics())
        self._labels = {"run": run, "process": process}
        self._series: dict[str, Gauge | Counter] = {}
        self._seen: dict[tuple[str, ...], float] = {}
        self._values: dict[tuple[str, str], set[str]] = {}
        self._untold: set[str] = set()
        self._counted_to = 0
        self._sums: dict[tuple[str, str], float] = {}
        self._distributions: dict[str, Distribution] = {}
        self.scrapes, self.discoveries = Requests(), Requests()
        self._server = _serve(self.registry, host, port, targets, self.scrapes, self.discoveries)
        self.address = f"{host}:{self._server.server_address[1]}"

    def record(self, values: Mapping[str, object]) -> None:
        """Take over the numbers of a status. Never raises, because the events have already happened."""
        for name, value in values.items():
            if _is_number(value):
                self._take(name, value, {})

    # --- the run --------------------------------------------------------------------------------

    def restore(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Take over the counters of earlier starts from their metric lines, so that no counter begins again.

        Boards divide their growth by that of the wall time, so both begin at once.
        """
        for line in lines:
            self._record_line(line, lambda name: name.endswith("_total") or name == "wall_s")

    def record_line(self, line: Mapping[str, object]) -> None:
        """Take over a metrics line. The counts of a step that is replayed are not added again."""
        self._record_line(line, lambda _: True)

    def _record_line(self, line: Mapping[str, object], wanted: Callable[[str], bool]) -> None:
        step = line.get("step")
        is_new = isinstance(step, int) and step > self._counted_to
        for field, value in line.items():
            if not _is_number(value):
                continue
            if (found := metrics.family_of(field)) and wanted(found[0].name):
                self._take_part(*found, value, is_new)
            if (found is None or metrics.meaning(field)) and wanted(field):
                self._take(field, value, {})
        if isinstance(step, int):
            self._counted_to = max(step, self._counted_to)

    def _take_part(self, family: metrics.Family, part: str, value: float, is_new: bool) -> None:
        part = self._bounded(family.name, {family.label: part})[family.label]
        if family.name.endswith("_total") and not family.is_history:
            key = (family.name, part)
            self._sums[key] = value = self._sums.get(key, 0.0) + (value if is_new else 0.0)
        self._take(family.name, value, {family.label: part}, family.help)

    def record_ended(self, ended: Ended) -> None:
        """Take over the distributions of a training draw that ended with a group. Malformed groups are left out."""
        if isinstance(ended.result, Group) and ended.outcome is not Outcome.FAILED:
            self._record_group(ended.result, ended.step)

    def _record_group(self, group: Group, step: int | None) -> None:
        self._observe("completion_tokens", [len(each.token_ids) for each in group.completions])
        ages = [each.spans[-1].version.number - each.spans[0].version.number for each in group.completions]
        self._observe("kv_cache_age_versions", ages)
        self._observe("group_s", [group.finished_at - group.started_at])
        if group.prompt.queued_at:
            self._observe("queue_s", [group.started_at - group.prompt.queued_at])
        for name in {name for each in group.completions for name in each.verdicts}:
            seconds = [each.verdicts[name].seconds for each in group.completions if name in each.verdicts]
            self._observe("verification_s", seconds, {"verifier": name})
        if step is not None:
            spans = [span for each in group.completions for span in each.spans]
            lags = [step - 1 - span.version.number for span in spans]
            self._observe("token_lag_versions", lags, {}, [span.end - span.start for span in spans])

    def record_verdict(self, verdict: RunVerdict | None) -> None:
        """Take over the limit of the run. Without a verdict its metrics are gone."""
        if verdict is None:
            for name in ("limit", "limit_sure_ratio", "balanced_actors_per_learner"):
                if name in self._series:
                    self._series[name].clear()
            return
        for limit in Bottleneck:
            self._take("limit", float(limit is verdict.limit), {"limit": str(limit)})
        self.record({"limit_sure_ratio": verdict.sure, "balanced_actors_per_learner": verdict.actors_per_learner})

    # --- an actor -------------------------------------------------------------------------------

    def record_actor(self, status: ActorStatus) -> None:
        """Take over an actor's heartbeat."""
        self.record(
            {
                "tokens_generated_total": status.tokens_generated,
                "tokens_wasted_total": status.tokens_wasted,
                "completions_total": status.completions,
                "sequences_running": status.running,
                "sequences_waiting": status.waiting,
                "kv_cache_used_ratio": status.kv_used,
                "engine_up_s_total": status.up_s,
                "engine_busy_s_total": status.busy_s,
                "engine_running_s_total": status.running_s,
                "engine_slots_s_total": status.slots_s,
                "sequences_awaiting_weights_s_total": status.awaiting_weights_s,
                "sequences_awaiting_verdicts_s_total": status.awaiting_verdicts_s,
                "sequences_awaiting_group_s_total": status.awaiting_group_s,
                "sequences_awaiting_environment_s_total": status.awaiting_environment_s,
                "engine_flops_total": status.flops,
                "engine_moved_bytes_total": status.moved_bytes,
                "engine_peak_flops_per_s": status.peak_flops_per_s,
                "engine_peak_bytes_per_s": status.peak_bytes_per_s,
                "weight_updates_total": status.updates,
                "weight_update_failures_total": status.update_failures,
                "weight_stall_s_total": status.stall_s_total,
                "weight_stall_s_max": status.stall_s_max,
                "weight_proofs_total": status.proofs,
                "weight_proof_diff_max": status.proof_diff_max,
                "weight_proof_s_total": status.proof_s_total,
                "weight_proof_engine_s_total": status.scored_s,
                "verifier_s_total": status.verifier_s_total,
                "commits_late_total": status.commits_late,
                "commits_duplicate_total": status.commits_duplicate,
                "policy_version": status.version.number if status.version else -1,
            }
        )
        for part, numbers in status.verifiers.items():
            self._record_verifiers(part, numbers)
        for name, value in status.episodes.items():
            name, _, tool = name.partition(".")
            self._take(_EPISODES.get(name, f"{name}_total"), value, {"tool": tool} if tool else {})

    def _record_verifiers(self, part: str, numbers: Mapping[str, float]) -> None:
        """Take over the counts of one part of the verifiers. The kinds of outcomes become a label."""
        for name, value in numbers.items():
            name, _, kind = name.partition(".")
            total = f"verifier_{name}" if name in _GAUGES else f"verifier_{_BUSY.get(name, name)}_total"
            self._take(total, value, {"part": part} | ({"kind": kind} if kind else {}))

    # --- one value ------------------------------------------------------------------------------

    def _take(self, name: str, value: float, more: Labels, about: str | None = None) -> None:
        try:
            about = about or metrics.meaning(name)
            if about is None:
                raise ValueError("olmorl/metrics.py does not have it")
            self._tell(name, float(value), {**self._labels, **self._bounded(name, more)}, about)
        except Exception as error:
            self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._untold:
            self._untold.add(name)
            log.warning("%s is not exported to Prometheus: %s", name, error)

    def _bounded(self, name: str, labels: Labels) -> dict[str, str]:
        """The labels, with `other` for the values of a label beyond the first ones."""
        bounded = {}
        for label, value in labels.items():
            known = self._values.setdefault((name, label), set())
            if len(known) < metrics.MOST_LABEL_VALUES:
                known.add(value)
            bounded[label] = value if value in known else _OTHER
        return bounded

    def _tell(self, name: str, value: float, labels: Labels, about: str) -> None:
        kind = Counter if name.endswith("_total") else Gauge
        if name not in self._series:
            self._series[name] = kind(prometheus_name(name), about, list(labels), registry=self.registry)
        series = self._series[name].labels(**labels)
        if isinstance(series, Gauge):
            series.set(value)
            return
        key = (name, *labels.values())
        grown = value - self._seen.get(key, 0.0)
        self._seen[key] = max(value, self._seen.get(key, 0.0))
        # A total falls when the run is rolled back. The counter waits until the total is higher again.
        if grown > 0:
            series.inc(grown)

    def _observe(
        self, name: str, values: Sequence[float], more: Labels | None = None, weights: Sequence[int] | None = None
    ) -> None:
        try:
            if name not in self._distributions:
                self._distributions[name] = Distribution(name, list(self._labels))
                self.registry.register(self._distributions[name])
            labels = (*self._labels.values(), *self._bounded(name, more or {}).values())
            self._distributions[name].observe(values, labels, weights)
        except Exception as error:
            self._warn(name, error)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Distribution(Collector):
    """One histogram of `metrics.HISTOGRAMS`: takes many values at once, each with a weight, from any thread.

    New values are only kept, and are counted together at a scrape: values are frequent, and scrapes are rare.
    """

    def __init__(self, name: str, labels: Sequence[str]) -> None:
        self._name = prometheus_name(name)
        self._histogram = metrics.HISTOGRAMS[name]
        self._labels = [*labels, *self._histogram.labels]
        self._lock = threading.Lock()
        self._new: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
        self._counts: dict[tuple[str, ...], Weights] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, values: Sequence[float], labels: tuple[str, ...], weights: Sequence[float] | None = None) -> None:
        """Add values. Clocks of two hosts may differ: a negative value counts as 0."""
        with self._lock:
            new_values, new_weights = self._new.setdefault(labels, ([], []))
            new_values += values
            new_weights += weights or [1.0] * len(values)
            if len(new_values) > _MOST_UNCOUNTED:
                self._count()

    def _count(self) -> None:
        for labels, (values, weights) in self._new.items():
            values_N, weights_N = np.maximum(values, 0.0), np.asarray(weights)
            bins_N = np.searchsorted(self._histogram.buckets, values_N)
            counts = np.bincount(bins_N, weights_N, len(self._histogram.buckets) + 1)
            self._counts[labels] = self._counts.get(labels, np.zeros_like(counts)) + counts
            self._sums[labels] = self._sums.get(labels, 0.0) + float(values_N @ weights_N)
        self._new = {}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The buckets so far. prometheus-client calls this at each scrape."""
        family = HistogramMetricFamily(self._name, self._histogram.help, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in self._histogram.buckets), "+Inf"]
        with self._lock:
            self._count()
            for labels, counts in self._counts.items():
                buckets = list(zip(bounds, np.cumsum(counts).tolist(), strict=True))
                family.add_metric(labels, buckets, self._sums[labels])
        yield family


class _EngineMetrics(Collector):
    """vLLM's own metrics, under vLLM's own names. It keeps them in the registry of the whole process."""

    def collect(self) -> Iterator[Metric]:
        yield from (each for each in prometheus_client.REGISTRY.collect() if each.name.startswith("vllm:"))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Requests:
    """The last requests of one kind from a Prometheus. Other readers do not count."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: deque[float] = deque(maxlen=2)

    def note(self, begun_at: float) -> None:
        """Note that a request is answered which began at this monotonic time."""
        with self._changed:
            self._begun.append(begun_at)
            self._changed.notify_all()

    def next_within_s(self) -> float:
        """The longest time until the next request, at most `_LONGEST_WAIT_S`; 0 when none is to be expected."""
        if len(self._begun) < 2:
            return _LONGEST_WAIT_S if self._begun else 0.0
        usual_s = 2 * (self._begun[1] - self._begun[0])
        return min(usual_s, _LONGEST_WAIT_S) if time.monotonic() - self._begun[1] < usual_s else 0.0

    def wait(self, timeout_s: float) -> None:
        """Wait until a request that began after this call is answered."""
        now = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._begun and self._begun[-1] > now, timeout_s)


def _serve(
    registry: CollectorRegistry,
    host: str,
    port: int,
    targets: Callable[[], Entries] | None,
    scrapes: Requests,
    discoveries: Requests,
) -> ThreadingHTTPServer:
    class WithTargets(MetricsHandler.factory(registry)):  # type: ignore[misc]
        def do_GET(self) -> None:
            if targets is None or self.path != TARGETS_PATH:
                # prometheus-client writes vllm_ for vllm: in the OpenMetrics format, so all get the older one.
                del self.headers["Accept"]
                begun_at = time.monotonic()
                super().do_GET()
                if _OF_PROMETHEUS in self.headers:
                    scrapes.note(begun_at)
                return
            begun_at = time.monotonic()
            body = json.dumps(targets()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if _OF_DISCOVERY in self.headers:
                discoveries.note(begun_at)

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # a scraper that gave up is not our error
                super().handle_error(request, client_address)

    try:
        server = Server((host, port), WithTargets)
    except OSError as error:
        raise ResourceError(
            f"the metrics cannot be served at {host}:{port}: {error.strerror}: give another telemetry.port, or 0"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class Targets:
    """Prometheus' discovery: one entry for each process. Its file is replaced whole when a process starts or ends."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._written: Entries | None = None

    def write(self, addresses: Mapping[str, str]) -> None:
        """Say where each process serves its metrics, `host:port` by its name."""
        entries = target_entries(addresses, self._run)
        if entries == self._written:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._path)
        self._written = entries


def target_entries(addresses: Mapping[str, str], run: str) -> Entries:
    """The discovery of these processes. A process keeps its labels when it starts again on another port."""
    return [
        {"targets": [address], "labels": {"run": run, "process": name, "instance": f"{run}/{name}"}}
        for name, address in sorted(addresses.items())
    ]
