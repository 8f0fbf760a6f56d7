"""A feed never waits: what a tracker does not take in time is dropped and counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from olmorl.deploy.tracking.feed import TrackingFeed
from olmorl.deploy.tracking.records import TrackedLine, TrackedRun

Install = Callable[[str], None]


def feed(folder: Path, most_waiting: int = 8) -> TrackingFeed:
    run = TrackedRun(name="r", run_id="r-1", folder=str(folder), sink="trackio", settings={})
    return TrackingFeed(run, {}, most_waiting)


def put(to: TrackingFeed, count: int) -> float:
    """Put so many lines; returns the longest time of one call."""
    longest = 0.0
    for step in range(1, count + 1):
        began = time.perf_counter()
        to.put(TrackedLine(at=0.0, line={"step": step, "loss": 0.5}, samples=[]))
        longest = max(longest, time.perf_counter() - began)
    return longest


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "tracking_process" in " ".join(each.cmdline())]


def test_every_record_arrives_in_order(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio(f"pathlib.Path({str(tmp_path / 'log')!r}).open('a').write(f'{{step}} {{metrics}}\\n')")
    made = feed(tmp_path, most_waiting=100)
    put(made, 50)
    made.close()
    assert (tmp_path / "log").read_text().splitlines() == [f"{step} {{'loss': 0.5}}" for step in range(1, 51)]
    assert made.num_dropped == 0 and children() == []


def test_a_tracker_that_hangs_costs_points_and_no_time(tmp_path: Path, fake_trackio: Install) -> None:
    fake_trackio("time.sleep(3600)")
    made = feed(tmp_path)
    assert put(made, 1000) < 0.05
    # One is on its way, eight wait.
    until(lambda: made.num_dropped >= 991)
    began = time.monotonic()
    made.close(wait_s=0.5)
    assert time.monotonic() - began < 5
    assert made.num_dropped == 1000 and children() == []


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
