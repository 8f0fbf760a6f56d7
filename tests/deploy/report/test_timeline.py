"""The timeline: states, faults, undone steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from olmorl.deploy.report.run_reader import RunReader
from olmorl.deploy.report.timeline import states, timeline
from olmorl.learner.storage.ledger_state import Line, Started, Trained
from tests.deploy.report.conftest import Make
from tests.deploy.report.made_runs import BEGAN
from tests.deploy.report.reading import Parts


def started(at: float, incarnation: int, step: int) -> Started:
    return Started(at=at, incarnation=incarnation, step=step, replay_to=step, stream={})


def trained(at: float | None, step: int) -> Trained:
    return Trained(at=at, step=step, tokens=1)


def test_states_follow_each_other_until_the_end() -> None:
    events = [
        {"at": 1.0, "process": "launcher", "state": "started"},
        {"at": 2.0, "process": "actor-0", "state": "started"},
        {"at": 3.0, "process": "actor-0", "state": "working"},
        {"at": 4.0, "process": "learner", "state": "restarting"},
        {"at": 5.0, "process": "actor-0", "state": "ended"},
        {"at": 6.0, "process": "actor-0", "state": "started"},
    ]
    assert states(events) == {
        "launcher": [["started", 1.0, None]],
        "actor-0": [["started", 2.0, 3.0], ["working", 3.0, 5.0], ["started", 6.0, None]],
    }


def test_a_new_launcher_ends_what_a_killed_one_left() -> None:
    events = [
        {"at": 1.0, "process": "launcher", "state": "started"},
        {"at": 2.0, "process": "actor-0", "state": "working"},
        {"at": 9.0, "process": "launcher", "state": "started"},
    ]
    assert states(events)["actor-0"] == [["working", 2.0, 9.0]]
    assert states(events)["launcher"] == [["started", 1.0, 9.0], ["started", 9.0, None]]


def test_steps_that_a_start_undid_are_told_apart(tmp_path: Path) -> None:
    events: list[Line] = [
        started(10.0, 1, 0),
        *(trained(20.0, 1), trained(30.0, 2), trained(40.0, 3)),
        started(50.0, 2, 1),
        trained(60.0, 2),
    ]
    lines = [{"step": 1, "learner_step_s": 4.0, "learner_wait_s": 1.0}, {"step": 2, "learner_step_s": 5.0}]
    found = timeline(tmp_path, events, lines)
    assert found["steps"] == [[1, 20.0, 4.0, 1.0], [2, 60.0, 5.0, 0.0]]
    assert found["lost"] == [[2, 30.0, 20.0], [3, 40.0, 30.0]]
    assert found["versions"] == [[0, 10.0], [1, 20.0], [2, 30.0], [3, 40.0], [1, 50.0], [2, 60.0]]
    assert [start["step"] for start in found["starts"]] == [0, 1]


def test_a_ledger_without_times_has_no_steps_in_the_timeline(tmp_path: Path) -> None:
    found = timeline(tmp_path, [trained(None, 1)], [{"step": 1}])
    assert found["steps"] == found["versions"] == found["lost"] == []


def test_what_was_recorded_is_there(make_run: Make) -> None:
    run = make_run(steps=2)
    (run / "process_events.jsonl").open("a").write('{"at": 3, "proc')
    (run / "checkpoints" / "step_2").mkdir(parents=True)
    (run / "checkpoints" / "step_2" / "complete").touch()
    (run / "checkpoints" / "step_9").mkdir()
    (run / "logs").mkdir()
    (run / "logs" / "launcher.log").write_text(
        "2026-01-02 03:04:05,678 INFO olmorl.deploy.view.live_view: starting <b>Ray</b>\nTraceback: no line\n"
    )
    found = Parts(*RunReader(run, 1 << 30).read()).about["timeline"]
    assert [step[:2] for step in found["steps"]] == [[1, BEGAN + 10], [2, BEGAN + 20]]
    assert [step for step, _ in found["checkpoints"]] == [2]
    assert [(fault["process"], fault["cause"]) for fault in found["faults"]] == [("actor-0", "actor-0 died")]
    assert found["processes"]["actor-0"][1] == ["working", BEGAN - 1, BEGAN + 12]
    assert [message[1:] for message in found["messages"]] == [["INFO", "starting <b>Ray</b>"]]
    assert found["messages"][0][0] == pytest.approx(1767300000, abs=200000)
