"""Tells the tracker and the trace collector of a run what happens. Never waits for them.

`telemetry.tracker` names the tracker. Traces go to the address in OTEL_EXPORTER_OTLP_ENDPOINT. Each of the two has a
process of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from olmorl.config import Config
from olmorl.deploy.tracking.feed import TrackingFeed
from olmorl.deploy.tracking.records import SinkName, TrackedLine, TrackedRun, attempt_of
from olmorl.deploy.view.dashboard import RecentSample
from olmorl.errors import ConfigError
from olmorl.learner.storage.durable_files import write_whole
from olmorl.learner.storage.rollout_record import Ended
from olmorl.run_dir import RunFiles

SAMPLES = 4
"""Answers in the table of a step."""
_PASSED_ON = ("WANDB_", "TRACKIO_", "OTEL_", "HF_TOKEN")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OVER_HTTP = "http/protobuf"
Environment = Mapping[str, str]


class Tracking:
    """The feeds of a run: none, one or two."""

    def __init__(self, settings: Config, environment: Environment) -> None:
        names: list[SinkName] = [settings.telemetry.tracker] if settings.telemetry.tracker else []
        names += ["traces"] if sends_traces(environment) else []
        about: dict[str, Any] = {
            "name": settings.run.name,
            "run_id": tracking_id(settings),
            "folder": str(settings.run_dir),
            "settings": settings.model_dump(mode="json", exclude_none=True),
        }
        self._feeds = {name: TrackingFeed(TrackedRun(sink=name, **about), environment) for name in names}
        self._samples: list[RecentSample] = []

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Pass on a metrics line, with the answers since the line before."""
        samples: list[RecentSample] = []
        if "step" in line:
            samples, self._samples = self._samples, []
        for feed in self._feeds.values():
            feed.put(TrackedLine(at=time.time(), line=dict(line), samples=samples))

    def add_ended(self, ended: Ended, sample: RecentSample | None) -> None:
        """Pass on a draw that ended, with one of its answers."""
        if "traces" in self._feeds:
            self._feeds["traces"].put(attempt_of(ended))
        if sample is not None and len(self._samples) < SAMPLES:
            self._samples.append(sample)

    @property
    def num_dropped(self) -> int:
        """Records that were dropped since the start of this process."""
        return sum(feed.num_dropped for feed in self._feeds.values())

    def close(self) -> None:
        """Wait for the last points, at most `CLOSE_S`. Blocks. May be called again."""
        if self._feeds:
            with ThreadPoolExecutor(len(self._feeds)) as pool:
                list(pool.map(lambda feed: feed.close(), self._feeds.values()))


def tracking_id(settings: Config) -> str:
    """The id of the run for trackers and traces: made once, and kept in the run directory."""
    path = RunFiles(settings.run_dir).tracking_id
    if not path.exists():
        write_whole(path, [f"{settings.run.name}-{token_hex(4)}".encode()])
    return path.read_text()


def sends_traces(environment: Environment) -> bool:
    """Whether an endpoint for traces is set."""
    is_off = environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none" or environment.get("OTEL_SDK_DISABLED") == "true"
    return not is_off and any(environment.get(name) for name in _ENDPOINTS)


def environment_of_launcher() -> dict[str, str]:
    """The variables that the tracking processes need. They hold credentials."""
    found = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    if not found.get("WANDB_API_KEY") and (key := _stored_key(found)):
        found["WANDB_API_KEY"] = key
    return found


def check_tracking(settings: Config) -> None:
    """The libraries are installed, and Weights & Biases has a login.

    Raises:
        ConfigError: one is missing; the message has the fix.
    """
    environment = environment_of_launcher()
    tracker = settings.telemetry.tracker
    if tracker is not None and find_spec(tracker) is None:
        raise ConfigError(
            f'telemetry.tracker = "{tracker}": the package {tracker} is not installed: pip install {tracker}, on the '
            "host of the first learner node too, or leave the key out"
        )
    if tracker == "wandb" and not _has_login(environment):
        raise ConfigError(
            'telemetry.tracker = "wandb": no login: run `wandb login`, or set WANDB_API_KEY; WANDB_MODE=offline keeps '
            "the points in RUN/wandb for `wandb sync`"
        )
    if sends_traces(environment):
        _check_traces(environment)


def _check_traces(environment: Environment) -> None:
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), _OVER_HTTP)
    if protocol != _OVER_HTTP:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: traces are sent as {_OVER_HTTP}: set that, with the collector's "
            "address for HTTP (usually port 4318), or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        if not _is_there(package):
            raise ConfigError(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, and the packages for traces are not installed: "
                "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, or unset it"
            )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False


def _has_login(environment: Environment) -> bool:
    needs_none = environment.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    return needs_none or any(map(environment.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")))


def _stored_key(environment: Environment) -> str | None:
    """What `wandb login` has stored."""
    host = urlsplit(environment.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        found = netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, NetrcParseError):
        return None
    return found[2] if found else None
