"""Trackers: the points of a line, and what TensorBoard, Weights & Biases and trackio have afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.tracking.records import SinkName, TrackedLine, TrackedRun
from olmorl.deploy.tracking.trackers import COLUMNS, TrackerSink, Values, open_tracker, points
from olmorl.deploy.view.dashboard import RecentSample

SAMPLE = RecentSample(draw=7, prompt="What is 6 x 7?", answer="It is <b>42</b>", reward=1.0, outcome="trained")


class FakeTracker:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def rewind(self, step: int) -> None:
        self.calls.append(("rewind", step))

    def log(self, step: int, values: Values) -> None:
        self.calls.append(("log", step, dict(values)))

    def log_samples(self, step: int, rows: Sequence[Sequence[str]]) -> None:
        self.calls.append(("samples", step, rows))

    def close(self) -> None:
        self.calls.append(("close",))


def line(samples: Sequence[RecentSample] = (), **fields: Any) -> TrackedLine:
    return TrackedLine(at=0.0, line=fields, samples=list(samples))


def tracked(folder: Path, sink: SinkName) -> TrackedRun:
    return TrackedRun(name="r", run_id="r-1", folder=str(folder), sink=sink, settings={"run": {"name": "r"}})


def write(folder: Path, sink: SinkName, *lines: TrackedLine) -> None:
    sink_of_run = TrackerSink(open_tracker(tracked(folder, sink)))
    for each in lines:
        assert sink_of_run.take(each) == 0
    sink_of_run.close()


def test_an_evaluation_is_at_the_version_that_it_measured() -> None:
    found = points({"step": 9, "loss": 0.5, "cause": "x", "eval_a_b_version": 6, "eval_a_b_accuracy": 0.7, "lr": None})
    assert found == {9: {"loss": 0.5}, 6: {"eval_a_b_version": 6, "eval_a_b_accuracy": 0.7}}
    assert points({"eval_a_version": 2, "eval_a_b_version": 3, "eval_a_b_accuracy": 1.0}) == {
        2: {"eval_a_version": 2},
        3: {"eval_a_b_version": 3, "eval_a_b_accuracy": 1.0},
    }


def test_a_sink_says_when_steps_come_again() -> None:
    fake = FakeTracker()
    sink = TrackerSink(fake)
    for each in (line(step=4, loss=1.0), line([SAMPLE], step=5, loss=2.0), line(eval_a_version=4), line(step=5)):
        sink.take(each)
    sink.close()
    assert fake.calls == [
        ("rewind", 4),
        ("log", 4, {"loss": 1.0}),
        ("log", 5, {"loss": 2.0}),
        ("samples", 5, [["7", "trained", "1", "What is 6 x 7?", "It is <b>42</b>"]]),
        ("log", 4, {"eval_a_version": 4}),
        ("rewind", 5),
        ("close",),
    ]


def test_tensorboard_reads_the_curves_and_the_samples(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    first = [line(step=step, reward_mean=step / 10) for step in (1, 2, 3, 4)]
    write(tmp_path, "tensorboard", *first, line(eval_held_version=2, eval_held_accuracy=0.5))
    # The second start goes on after step 2: its points take the place of those of steps 3 and 4.
    again = [line([SAMPLE], step=3, reward_mean=0.9), line(step=4, reward_mean=1.0, eval_held_version=3)]
    write(tmp_path, "tensorboard", *again)
    read = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    reward = [(point.step, round(point.value, 3)) for point in read.Scalars("reward_mean")]
    assert reward == [(1, 0.1), (2, 0.2), (3, 0.9), (4, 1.0)]
    assert [(point.step, point.value) for point in read.Scalars("eval_held_accuracy")] == [(2, 0.5)]
    (table,) = read.Tensors("samples")
    cells = [[cell.decode() for cell in row] for row in make_ndarray(table.tensor_proto)]
    assert (table.step, cells[0], cells[1][-1]) == (3, list(COLUMNS), "It is <b>42</b>")
    assert read.SummaryMetadata("samples").plugin_data.plugin_name == "text"


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: a head of 7 bytes, then LevelDB's log in blocks of 32 KiB."""
    data, at, parts = file.read_bytes(), 7, []
    while at + 7 <= len(data):
        if (left := -at % (1 << 15)) < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield b"".join(parts)
            parts = []


def test_wandb_keeps_the_points_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write(tmp_path, "wandb", line(step=1, loss=0.5), line([SAMPLE], step=2, loss=0.25), line(eval_a_version=1))
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-r-1.wandb")
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for data in wandb_records(file):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
        # A change that comes after the start of the run is a record of its own.
        for changed in (record.run.config, record.config):
            config |= {item.key: json.loads(item.value_json) for item in changed.update}
    assert config["run"] == {"name": "r"}
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == [(1, 0.5), (2, 0.25)]
    assert [row["step"] for row in rows if "eval_a_version" in row] == [1]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/samples_*.json")
    assert json.loads(table.read_text())["data"] == [["7", "trained", "1", SAMPLE.prompt, SAMPLE.answer]]


def test_trackio_keeps_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio.sqlite_storage import SQLiteStorage

    write(tmp_path, "trackio", line(step=1, loss=0.5), line([SAMPLE], step=2, loss=0.25))
    write(tmp_path, "trackio", line(step=3, loss=0.125))
    rows = SQLiteStorage.get_logs("olmorl", "r-1")
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    (table,) = [row["samples"] for row in rows if "samples" in row]
    assert SAMPLE.answer in json.dumps(table)
