"""A feed never waits: what a tracker does not take in time is dropped and counted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from olmorl.deploy.tracking.feed import TrackingFeed
from olmorl.deploy.tracking.records import TrackedLine, TrackedRun, attempt_of
from tests.deploy.ended_draws import ended
from tests.deploy.tracking.otlp_receiver import OtlpReceiver
from tests.waiting import until, with_command

Install = Callable[[str], None]


def feed(folder: Path, most_waiting: int = 8, environment: Any = None) -> TrackingFeed:
    run = TrackedRun(name="r", run_id="r-1", folder=str(folder), sink="trackio", settings={})
    return TrackingFeed(run, environment or {}, most_waiting)


def put(to: TrackingFeed, count: int) -> None:
    for step in range(1, count + 1):
        to.put(TrackedLine(at=0.0, line={"step": step, "loss": 0.5}, samples=[]))


def children() -> list[psutil.Process]:
    """Processes of trackers. Other tests of this process may leave ended children, which have no command line."""
    return with_command(psutil.Process().children(), "tracking_process")


def test_every_record_arrives_in_order(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio(f"pathlib.Path({str(tmp_path / 'log')!r}).open('a').write(f'{{step}} {{metrics}}\\n')")
    made = feed(tmp_path, most_waiting=100)
    put(made, 50)
    made.close()
    assert (tmp_path / "log").read_text().splitlines() == [f"{step} {{'loss': 0.5}}" for step in range(1, 51)]
    assert made.num_dropped == 0 and children() == []


def test_a_tracker_that_hangs_costs_points_and_holds_nobody_up(tmp_path: Path, fake_trackio: Install) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    fake_trackio(f"pathlib.Path({str(began)!r}).touch(); time.sleep(3600); pathlib.Path({str(ended)!r}).touch()")
    made = feed(tmp_path)
    put(made, 1)
    until(began.exists)
    put(made, 1000)
    # One is on its way, eight wait.
    assert made.num_dropped == 992
    made.close(wait_s=0.5)
    assert not ended.exists()
    assert made.num_dropped == 1001 and children() == []


def test_a_child_of_a_tracker_that_keeps_the_link_open_holds_nobody_up(tmp_path: Path, fake_trackio: Install) -> None:
    pid = tmp_path / "pid"
    child = f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
    fake_trackio(f"os.fork() or {child}; time.sleep(3600)")
    made = feed(tmp_path)
    put(made, 3)
    until(lambda: pid.exists() and pid.read_text())
    closing = threading.Thread(target=made.close, args=[0.2], daemon=True)
    closing.start()
    closing.join(30)
    try:
        assert psutil.pid_exists(int(pid.read_text()))
        assert not closing.is_alive() and made.num_dropped == 3
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_process_that_cannot_start_costs_all_points(tmp_path: Path) -> None:
    made = feed(tmp_path, most_waiting=100, environment={"NUL": "\0"})
    put(made, 5)
    until(lambda: made.num_dropped == 5)
    put(made, 5)
    assert made.num_dropped == 10
    made.close()


def test_a_record_that_cannot_be_sent_costs_the_rest(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio("pass")
    made = feed(tmp_path, most_waiting=100)
    made.put(TrackedLine(at=0.0, line={"step": object()}, samples=[]))
    put(made, 5)
    until(lambda: made.num_dropped == 6)
    made.close()
    assert made.num_dropped == 6 and children() == []


def test_what_a_process_still_keeps_when_it_is_killed_is_counted(tmp_path: Path, receiver: OtlpReceiver) -> None:
    run = TrackedRun(name="r", run_id="r-1", folder=str(tmp_path), sink="traces", settings={})
    made = TrackingFeed(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    for draw in range(5):
        made.put(attempt_of(ended(draw)))
    until(lambda: made._num_kept == 5)
    (process,) = children()
    process.kill()
    made.close()
    assert made.num_dropped == 5 and not receiver.spans


def test_what_is_refused_at_the_end_is_counted(tmp_path: Path, receiver: OtlpReceiver) -> None:
    receiver.status = 400
    run = TrackedRun(name="r", run_id="r-1", folder=str(tmp_path), sink="traces", settings={})
    made = TrackingFeed(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    for draw in range(5):
        made.put(attempt_of(ended(draw)))
    made.close()
    assert made.num_dropped == 5 and children() == []


def test_a_point_that_a_tracker_refuses_is_counted(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio("if step % 2: raise ValueError('no')")
    made = feed(tmp_path, most_waiting=100)
    put(made, 10)
    made.close()
    assert made.num_dropped == 5


def test_a_tracker_that_dies_costs_the_rest(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio("if step == 3: os._exit(1)")
    made = feed(tmp_path, most_waiting=100)
    put(made, 10)
    until(lambda: made.num_dropped == 8)
    put(made, 5)
    made.close()
    assert made.num_dropped == 13 and children() == []
