"""Who counts as lost, who is started again and when."""

from __future__ import annotations

import pytest

from olmorl.config import Supervision
from olmorl.deploy.supervise import Heartbeats, Restarts, Watchdog, is_passing
from olmorl.errors import (
    DataError,
    Diverged,
    EngineDied,
    NothingToLearn,
    OlmoRLError,
    ProcessLost,
    QueueUnavailable,
    Superseded,
    WeightError,
)
from olmorl.learner.waiting import Wait


def test_restarts_come_later_and_later_and_then_no_more() -> None:
    restarts = Restarts(Supervision(restarts=6, backoff_s=1, longest_backoff_s=5))
    assert [restarts.after_death(worked=False) for _ in range(7)] == [0, 1, 2, 4, 5, 5, None]
    assert restarts.deaths == 7


def test_work_done_in_between_starts_the_count_anew() -> None:
    restarts = Restarts(Supervision(restarts=2, backoff_s=1))
    assert [restarts.after_death(worked) for worked in (False, False, True, False, False)] == [0, 1, 0, 1, None]


def test_silence_is_the_time_since_a_heartbeat_changed() -> None:
    beats = Heartbeats()
    for now, beat in ((0.0, 1.0), (1.0, 2.0), (2.0, 2.0), (3.5, 2.0)):
        beats.heard({"actor-0": beat, "actor-1": now}, now)
    assert beats.silent_s("actor-0") == 2.5
    assert beats.silent_s("actor-1") == 0.0
    assert beats.silent_s("never heard of") == 0.0


def test_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    beats = Heartbeats()
    beats.heard({"actor-0": 1.0}, 0.0)
    beats.heard({"actor-0": 1.0}, 60.0)
    assert beats.silent_s("actor-0") == 0.0
    beats.heard({"actor-0": 1.0}, 62.0)
    assert beats.silent_s("actor-0") == 2.0


def test_a_wait_is_named_once_when_half_of_its_deadline_is_over() -> None:
    watchdog = Watchdog()
    assert watchdog.look([Wait("the batch of step 3", "the assembler", 49.0, 100.0)]) == []
    late = Wait("the batch of step 3", "the assembler", 51.0, 100.0)
    assert watchdog.look([late]) == ["waiting for the batch of step 3, which the assembler owns: 51 of 100 s"]
    assert watchdog.look([late]) == []
    assert watchdog.look([]) == []
    assert len(watchdog.look([late])) == 1, "a second wait of the same name"
    assert len(watchdog.look([Wait("room on the disk", "the run directory", 1.0, 100.0, urgent=True)])) == 1


def test_each_owner_of_such_a_wait_is_named() -> None:
    watchdog = Watchdog()
    first, second = (Wait("its start", f"actor-{i}", 60.0, 100.0) for i in range(2))
    assert watchdog.look([first]) == ["waiting for its start, which actor-0 owns: 60 of 100 s"]
    assert watchdog.look([first, second]) == ["waiting for its start, which actor-1 owns: 60 of 100 s"]


@pytest.mark.parametrize("error", [ProcessLost("x"), EngineDied("x"), WeightError("x")])
def test_what_another_start_may_mend(error: OlmoRLError) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error", [DataError("x"), NothingToLearn("x"), Diverged("x"), Superseded("x"), QueueUnavailable("x")]
)
def test_what_another_start_would_only_repeat(error: OlmoRLError) -> None:
    assert not is_passing(error)
