"""Prometheus metrics of each process, on the address of its own that the run uses. The one file with prometheus-client.

Names come from `olmorl.metrics`, with the prefix `olmorl_`: a `_total` is a counter, seconds are base units.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.process_collector import ProcessCollector

from olmorl.messages import ActorStatus

log = logging.getLogger(__name__)
_BUSY = {"seconds": "busy_s"}
"""`verifier_s_total` is already the time that all verdicts took."""
_UNITS = (
    ("_s_mean", "_seconds_mean"),
    ("_s_max", "_seconds_max"),
    ("_s_total", "_seconds_total"),
    ("_per_s", "_per_second"),
)


class Telemetry:
    """The metrics of one process: gauges take the last value, counters never decrease. A failure stops no run."""

    def __init__(self, process: str, run: str, host: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._labels = {"run": run, "process": process}
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._seen: dict[tuple[str, ...], float] = {}
        self._untold: set[str] = set()
        server, _ = start_http_server(0, addr=host, registry=self.registry)
        self._server = server
        self.address = f"{host}:{server.server_port}"

    def record(self, values: Mapping[str, object]) -> None:
        """Take over the numbers of a metrics line or a status. Never raises: what they tell of has happened."""
        for name, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._take(name, value, {})

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
                "weight_updates_total": status.updates,
                "weight_update_failures_total": status.update_failures,
                "weight_stall_s_total": status.stall_s_total,
                "weight_stall_s_max": status.stall_s_max,
                "weight_proofs_total": status.proofs,
                "weight_proof_diff_max": status.proof_diff_max,
                "weight_proof_s_total": status.proof_s_total,
                "verifier_s_total": status.verifier_s_total,
                "commits_late_total": status.commits_late,
                "commits_duplicate_total": status.commits_duplicate,
                "policy_version": status.version.number if status.version else -1,
            }
        )

        for part, numbers in status.verifiers.items():
            self._record_verifiers(part, numbers)

    def _record_verifiers(self, part: str, numbers: Mapping[str, float]) -> None:
        """Take over what one part of the verifiers did; the kinds of outcomes become a label."""
        for name, value in numbers.items():
            name, _, kind = name.partition(".")
            total = "verifier_queue_depth" if name == "queue_depth" else f"verifier_{_BUSY.get(name, name)}_total"
            self._take(total, value, {"part": part} | ({"kind": kind} if kind else {}))

    def _take(self, name: str, value: float, more: Mapping[str, str]) -> None:
        try:
            self._tell(name, float(value), {**self._labels, **more})
        except Exception as error:
            if name not in self._untold:
                self._untold.add(name)
                log.warning("Prometheus is not told %s: %s", name, error)

    def _tell(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        if name.endswith("_total"):
            self._count(name, value, labels)
            return
        if name not in self._gauges:
            self._gauges[name] = Gauge(prometheus_name(name), name, list(labels), registry=self.registry)
        self._gauges[name].labels(**labels).set(value)

    def _count(self, name: str, total: float, labels: Mapping[str, str]) -> None:
        if name not in self._counters:
            self._counters[name] = Counter(prometheus_name(name), name, list(labels), registry=self.registry)
        key = (name, *labels.values())
        grown = total - self._seen.get(key, 0.0)
        self._seen[key] = max(total, self._seen.get(key, 0.0))
        # A total falls when the run is rolled back. The counter waits until the total is higher again.
        if grown > 0:
            self._counters[name].labels(**labels).inc(grown)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def prometheus_name(name: str) -> str:
    """The Prometheus name of a field of `metrics.jsonl`."""
    name = re.sub(r"\W", "_", name)
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return f"olmorl_{name.removesuffix(ending)}{unit}"
    return f"olmorl_{name[:-2]}_seconds" if name.endswith("_s") else f"olmorl_{name}"


class Targets:
    """Prometheus' file discovery: one entry per process, replaced atomically when a process comes, moves or goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, str] = {}

    def write(self, addresses: Mapping[str, str]) -> None:
        """Say where each process serves its metrics, `host:port` by its name."""
        if addresses == self._written:
            return
        entries = [{"targets": [address], "labels": {"process": name}} for name, address in sorted(addresses.items())]
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._path)
        self._written = dict(addresses)
