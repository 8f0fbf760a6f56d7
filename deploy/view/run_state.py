"""Reads the state of a run from its directory: its metric lines, and whether it is finished."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from olmorl import config
from olmorl.deploy.view.verdict import RunVerdict, Shape, verdict
from olmorl.errors import ConfigError, ResourceError
from olmorl.learner.storage import durable_files
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.run_dir import RunFiles

STOPPED, FAILED = "stopped: ", "failed: "
"""The beginning of `ended.txt` after an end that is not the end of the work."""
_LIVE_S = 15.0
"""A launcher writes its lock every 2 s. After so long without a write it is gone."""
_RECENT_STEPS = 20


def metric_lines(run_dir: Path) -> list[dict[str, Any]]:
    """All complete lines of `metrics.jsonl`; none before the first step. A line cut off by a crash is passed over."""
    return MetricsLog(RunFiles(run_dir).metrics).read()


def verdict_of(run_dir: Path) -> RunVerdict | None:
    """The limit of the run, now or at its end; None without a recipe or with too few lines."""
    try:
        settings = config.load(RunFiles(run_dir).config, of_run=True)
    except (ConfigError, OSError):
        return None
    return verdict(metric_lines(run_dir), Shape.of(settings))


def sandbox_of(run_dir: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """The sandbox in which programs of the model run; empty if the last steps had none."""
    try:
        settings = config.load(RunFiles(run_dir).config, of_run=True)
    except (ConfigError, OSError):
        return ""
    has_programs = any(key.startswith("reward_code") for line in lines[-_RECENT_STEPS:] for key in line)
    has_programs |= bool({"python", "bash"} & config.box_tools(settings.episodes.environment).keys())
    return settings.verifiers.code_tier if has_programs else ""


def note_end(run_dir: Path, reason: str | None) -> None:
    """Write why the run is over, or with `STOPPED` or `FAILED` why its launcher ended; with None that it goes on."""
    path = RunFiles(run_dir).ended
    if reason is None:
        path.unlink(missing_ok=True)
        return
    with suppress(ResourceError):  # the run is over, and a full disk changes nothing about that
        durable_files.write_whole(path, [reason.encode()])


def finished(run_dir: Path) -> str:
    """A message for people: why the run is over, and what to do next. Empty while the run is not over."""
    lines = metric_lines(run_dir)
    try:
        recipe = tomllib.loads(RunFiles(run_dir).config.read_text(encoding="utf-8"))
        steps = recipe["schedule"]["steps"]
        if lines and lines[-1]["step"] >= steps:
            why, way_on = f"all {steps:,} steps are done", "more schedule.steps and --resume --change train it on"
        else:
            why, way_on = RunFiles(run_dir).ended.read_text(encoding="utf-8"), _more_data(recipe["data"])
            if why.startswith((STOPPED, FAILED)):
                return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    export = RunFiles(run_dir).export
    policy = f"its policy is in {export}" if export.is_dir() else f"its policy: olmorl-ctl {run_dir} export FOLDER"
    return f"{run_dir}: finished, {why}; {policy}; {way_on}"


def last_end(run_dir: Path) -> str:
    """A message for people: why the run has no launcher. Empty while it has one, and after a kill."""
    if end := finished(run_dir):
        return end
    if has_launcher(run_dir):
        return ""
    try:
        return f"{run_dir}: {RunFiles(run_dir).ended.read_text(encoding='utf-8').strip()}"
    except OSError:
        return ""


def no_step_yet(run_dir: Path) -> str:
    """A message for people about a run without a step: why it ended, and where the logs are."""
    why = last_end(run_dir).partition(": ")[2]
    return f"{run_dir}: no step is done yet; {why}{'; ' if why else ''}the logs are in {run_dir / 'logs'}"


def has_launcher(run_dir: Path) -> bool:
    """Whether a launcher has written to the lock of the run in the last seconds."""
    try:
        lock = RunFiles(run_dir).lock.stat()
    except OSError:
        return False
    return lock.st_size > 0 and time.time() - lock.st_mtime < _LIVE_S  # a released lock is empty


def _more_data(data: Mapping[str, Any]) -> str:
    """How to continue a run that has used up its data."""
    epochs, retired = data.get("epochs"), data.get("no_resample_above")
    other = "to train on other rows, start a new run from its policy (model.path)"
    if epochs is None:
        return f"every row was solved often enough (data.no_resample_above = {retired}): {other}"
    which = "" if retired is None else f" that data.no_resample_above = {retired} has left"
    return f"data.epochs over {epochs} and --resume --change train it on the same rows{which}; {other}"
