"""TensorBoard, Weights & Biases and trackio: the curves of `metrics.jsonl`, evaluations, and tables of answers.

Every number keeps its name. Its x is the learner step; an evaluation is at the version that it measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from olmorl.deploy.tracking.records import Record, TrackedLine, TrackedRun
from olmorl.deploy.view.dashboard import RecentSample
from olmorl.metrics import evaluated_versions
from olmorl.run_dir import RunFiles

PROJECT = "olmorl"
COLUMNS = ("draw", "outcome", "reward", "prompt", "answer")
Values = Mapping[str, float]


class Tracker(Protocol):
    """One back end."""

    def rewind(self, step: int) -> None:
        """The points from this step on come again, or for the first time."""

    def log(self, step: int, values: Values) -> None:
        """Add points at a step."""

    def log_samples(self, step: int, rows: Sequence[Sequence[str]]) -> None:
        """Add a table with `COLUMNS`."""

    def close(self) -> None:
        """Write what is left."""


class TrackerSink:
    """Passes lines to a tracker, and says when steps are taken again."""

    num_kept = 0

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._step: int | None = None

    def take(self, record: Record) -> int:
        if not isinstance(record, TrackedLine):
            return 0
        step = record.line.get("step")
        if step is not None and (self._step is None or step <= self._step):
            self._tracker.rewind(step)
        for at, values in points(record.line).items():
            self._tracker.log(at, values)
        if step is not None:
            self._step = step
            if record.samples:
                self._tracker.log_samples(step, [_row(sample) for sample in record.samples])
        return 0

    def close(self) -> int:
        self._tracker.close()
        return 0


def points(line: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """The numbers of a line by their step. Those of an evaluation are at its version."""
    found: dict[int, dict[str, float]] = {}
    for name, value in line.items():
        if isinstance(value, (int, float)) and name != "step":
            version, *_ = evaluated_versions(line, name)
            if (step := line.get("step") if version is None else version) is not None:
                found.setdefault(step, {})[name] = value
    return found


def _row(sample: RecentSample) -> list[str]:
    reward = "" if sample.reward is None else f"{sample.reward:g}"
    return [str(sample.draw), sample.outcome, reward, sample.prompt, sample.answer]


def open_tracker(run: TrackedRun) -> Tracker:
    """The tracker of the recipe, with its library imported."""
    kinds: dict[str, Callable[[TrackedRun], Tracker]]
    kinds = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker, "trackio": TrackioTracker}
    return kinds[run.sink](run)


class TensorBoardTracker:
    """Writes event files to RUN/tensorboard. A start again hides the points of steps that are taken again."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(RunFiles(Path(run.folder)).tensorboard))

    def rewind(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._write(step, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, values: Values) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, summary=Summary(value=scalars))

    def log_samples(self, step: int, rows: Sequence[Sequence[str]]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        table = make_tensor_proto([[cell.encode() for cell in row] for row in (COLUMNS, *rows)])
        about = create_summary_metadata(display_name="samples", description="")
        self._write(step, summary=Summary(value=[Summary.Value(tag="samples", metadata=about, tensor=table)]))

    def _write(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """One run of Weights & Biases, continued after a resume. The variables WANDB_* of the launcher hold."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._table = wandb.Table
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.run_id,
            resume="allow",
            config=run.settings,
            dir=run.folder,
        )
        # Its own steps may not fall, and evaluations come late.
        self._run.define_metric("*", step_metric="step")

    def rewind(self, step: int) -> None:
        """Nothing: it keeps the points of both times."""

    def log(self, step: int, values: Values) -> None:
        self._run.log({**values, "step": step})

    def log_samples(self, step: int, rows: Sequence[Sequence[str]]) -> None:
        self._run.log({"samples": self._table(columns=list(COLUMNS), data=[list(row) for row in rows]), "step": step})

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """One run of trackio, continued after a resume. The variables TRACKIO_* of the launcher hold."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._trackio = trackio
        own = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        trackio.init(project=PROJECT, name=run.run_id, config=run.settings, resume="allow", **own)

    def rewind(self, step: int) -> None:
        """Nothing: it keeps the points of both times."""

    def log(self, step: int, values: Values) -> None:
        self._trackio.log(dict(values), step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[str]]) -> None:
        table = self._trackio.Table(columns=list(COLUMNS), data=[list(row) for row in rows])
        self._trackio.log({"samples": table}, step=step)

    def close(self) -> None:
        self._trackio.finish()
