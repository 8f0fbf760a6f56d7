"""What the launcher says of the progress of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.supervision.run_health import DISK_S, RunHealth


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    tree = {"run": {"directory": tmp_path}, "schedule": {"steps": 90, "max_lag": 3}, "checkpoint": {"every": 10}}
    made = config.build(tree)
    made.run_dir.mkdir(parents=True)
    return made


def test_the_time_since_a_step_and_the_median_of_the_steps(settings: config.Config) -> None:
    health = RunHealth(settings, now=100.0)
    assert health.progress(130.0, paused=False) == {
        "since_step_s": 30.0,
        "step_period_s_median": 0.0,
        "steps_wanted": 90,
        "lag_bound": 3,
        "checkpoint_every_steps": 10,
        "planned_actors_per_learner": 1.0,
    }
    # Steps 1 to 40 were of an earlier start. Then one takes 4 s, two take 10 s together, one takes 90 s.
    for step, now in ((40, 150.0), (41, 154.0), (41, 158.0), (43, 164.0), (44, 254.0)):
        health.note(step, now)
    found = health.progress(256.0, paused=False)
    assert (found["since_step_s"], found["step_period_s_median"]) == (2.0, 5.0)
    # A replay goes back: that is no step, and the next one counts from there.
    health.note(40, 300.0)
    health.note(41, 301.0)
    found = health.progress(301.0, paused=False)
    assert (found["since_step_s"], found["step_period_s_median"]) == (0.0, 5.0)


def test_no_step_is_late_in_a_pause_and_after_the_last_one(settings: config.Config) -> None:
    health = RunHealth(settings, now=100.0)
    health.note(1, 100.0)
    assert health.progress(700.0, paused=True)["since_step_s"] == 0.0
    assert health.progress(710.0, paused=False)["since_step_s"] == 10.0
    health.note(90, 720.0)
    assert health.progress(2000.0, paused=False)["since_step_s"] == 0.0


def test_steps_that_a_crash_would_repeat_and_the_room_on_the_disk(settings: config.Config) -> None:
    health = RunHealth(settings, now=0.0)
    assert health.disk(7, 0.0)["steps_since_checkpoint"] == 7
    assert health.disk(8, 0.9 * DISK_S) == {}, "the disk is not asked all the time"
    for step, complete in ((10, True), (20, True), (30, False)):
        folder = settings.run_dir / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True)
        if complete:
            (folder / "complete").touch()
    found = health.disk(33, DISK_S)
    assert found["steps_since_checkpoint"] == 13
    assert 0 < found["disk_free_ratio"] <= 1
    settings.run_dir.rename(settings.run_dir.with_name("gone"))
    assert health.disk(33, 2 * DISK_S) == {}
