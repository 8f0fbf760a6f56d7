"""The checkpoint with the highest value of an evaluation metric: `checkpoints/best.json` names it.

The file outlives the metric lines that a restart cuts, so a start never takes an older checkpoint for the best one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from olmorl.errors import DataError
from olmorl.learner.storage import checkpoint_dir, durable_files
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.run_dir import RunFiles

FILE = "best.json"


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best checkpoint so far."""

    metric: str
    step: int
    value: float


def update(files: RunFiles, metric: str) -> tuple[Best | None, int]:
    """Look for a better checkpoint in the metric lines, and name it in the file.

    Returns the best one, and the newest version whose value of `metric` is known; -1 without one.
    """
    there = set(checkpoint_dir.steps(files.checkpoints))
    kept = _read(files.checkpoints)
    best = kept if kept is not None and kept.metric == metric and kept.step in there else None
    newest = -1 if best is None else best.step
    for line in MetricsLog(files.metrics).lines():
        value, version = line.get(metric), _version(line, metric)
        if value is None or version is None:
            continue
        newest = max(newest, version)
        if version in there and (best is None or value > best.value):
            best = Best(metric=metric, step=version, value=value)
    if best is not None and best != kept:
        durable_files.write_whole(files.checkpoints / FILE, [msgspec.json.encode(best)])
    return best, newest


def best_step(checkpoints: Path) -> int:
    """The step of the best checkpoint. Raises DataError when the run has none."""
    best = _read(checkpoints)
    if best is None or best.step not in checkpoint_dir.steps(checkpoints):
        raise DataError(
            f"{checkpoints}: no checkpoint is known as the best one: set checkpoint.best in the recipe, and wait for "
            "an evaluation of a checkpoint"
        )
    return best.step


def _read(checkpoints: Path) -> Best | None:
    try:
        return msgspec.json.decode((checkpoints / FILE).read_bytes(), type=Best)
    except (OSError, ValueError):
        return None  # it is made again from the metric lines


def _version(line: dict[str, object], metric: str) -> int | None:
    """The version that the evaluation of a metric began with. A set may have the beginning of another one's name."""
    name = metric
    while name.startswith("eval_"):
        if isinstance(version := line.get(f"{name}_version"), int):
            return version
        name = name.rpartition("_")[0]
    return None
