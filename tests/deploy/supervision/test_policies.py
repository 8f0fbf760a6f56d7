"""When a process counts as lost, and when it is restarted."""

from __future__ import annotations

import pytest

from olmorl import deadlines
from olmorl.deploy.supervision.policies import (
    FailedPrompts,
    GiveUp,
    Heartbeats,
    LateWaits,
    Restarts,
    is_final,
    is_mistake,
    is_passing,
)
from olmorl.errors import (
    DataError,
    Diverged,
    EngineDied,
    NothingToLearn,
    OlmoRLError,
    ProcessLost,
    QueueUnavailable,
    StartError,
    Superseded,
    WeightError,
)
from olmorl.messages import Owner, Wait

LOST = ProcessLost("x")


def test_restarts_come_later_and_later_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "LONGEST_RESTART_PAUSE_S", 5)
    restarts = Restarts(is_final)
    assert [restarts.after_death(LOST) for _ in range(6)] == [0, 1, 2, 4, 5, GiveUp.TOO_OFTEN]
    assert restarts.deaths == 6


def test_work_in_between_starts_the_count_again() -> None:
    restarts, delays = Restarts(is_final), []
    for worked in (False, False, False, False, True, False, False):
        if worked:
            restarts.note_work()
        delays.append(restarts.after_death(LOST))
    assert delays == [0, 1, 2, 4, 0, 1, 2]


def test_the_same_error_at_two_starts_in_a_row_is_the_end() -> None:
    restarts = Restarts(is_final)
    error = "learner-0 failed: RuntimeError('layer 3')"
    assert restarts.after_death(LOST, error) == 0
    assert restarts.after_death(LOST, "learner-0 died: its host is gone") == 1
    assert restarts.after_death(LOST, error) == 2
    restarts.note_work()
    assert restarts.after_death(LOST, error) == 0, "it has worked in between"
    assert restarts.after_death(LOST, error.replace("3", "4")) is GiveUp.SAME_ERROR


def test_an_error_that_would_happen_again_is_the_end() -> None:
    restarts = Restarts(is_final)
    assert restarts.after_death(StartError("half a header")) is GiveUp.FINAL_ERROR
    assert restarts.deaths == 1


def test_prompts_that_fail_in_a_row_are_named_early_and_then_ever_less_often() -> None:
    failures = FailedPrompts()
    said = [number for number in (1, 2, 3, 4, 5, 7, 11, 12, 13, 40, 41) if failures.report(number, "why") == "why"]
    assert said == [3, 7, 12, 40]
    assert failures.report(0, "") == "" and failures.report(3, "again") == "again", "one was scored in between"


def test_silence_is_the_time_since_a_heartbeat_changed() -> None:
    beats = Heartbeats()
    for now, beat in ((0.0, 1.0), (1.0, 2.0), (2.0, 2.0), (3.5, 2.0)):
        beats.note({"actor-0": beat, "actor-1": now}, now)
    assert beats.silent_s("actor-0") == 2.5
    assert beats.silent_s("actor-1") == 0.0
    assert beats.silent_s("never heard of") == 0.0


def test_time_without_readable_heartbeats_does_not_count() -> None:
    beats = Heartbeats()
    beats.note({"actor-0": 1.0}, 0.0)
    beats.note({"actor-0": 1.0}, 60.0)
    assert beats.silent_s("actor-0") == 0.0
    beats.note({"actor-0": 1.0}, 62.0)
    assert beats.silent_s("actor-0") == 2.0


def test_a_wait_is_named_once_when_half_of_its_deadline_is_over() -> None:
    late = LateWaits()
    assert late.report([Wait("the batch of step 3", Owner.ORCHESTRATOR, 49.0, 100.0)]) == []
    wait = Wait("the batch of step 3", Owner.ORCHESTRATOR, 51.0, 100.0)
    assert late.report([wait]) == ["waiting for the batch of step 3, which the orchestrator owns: 51 of 100 s"]
    assert late.report([wait]) == []
    assert late.report([]) == []
    assert len(late.report([wait])) == 1, "a second wait of the same name"
    assert len(late.report([Wait("room on the disk", Owner.RUN_DIRECTORY, 1.0, 100.0, urgent=True)])) == 1


def test_each_owner_of_such_a_wait_is_named() -> None:
    late = LateWaits()
    first, second = (Wait("its start", Owner.ACTOR, 60.0, 100.0, owner_name=f"actor-{i}") for i in range(2))
    assert late.report([first]) == ["waiting for its start, which actor-0 owns: 60 of 100 s"]
    assert late.report([first, second]) == ["waiting for its start, which actor-1 owns: 60 of 100 s"]


@pytest.mark.parametrize("error", [ProcessLost("x"), EngineDied("x"), WeightError("x")])
def test_what_another_start_may_mend(error: OlmoRLError) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [DataError("x"), NothingToLearn("x"), Diverged("x"), Superseded("x"), QueueUnavailable("x"), StartError("x")],
)
def test_what_another_start_would_only_repeat(error: OlmoRLError) -> None:
    assert not is_passing(error)


def test_a_start_that_would_fail_alike_is_for_people_to_mend() -> None:
    assert is_mistake(StartError("x")) and not is_mistake(EngineDied("x"))
