"""When draws wait for the next version."""

from __future__ import annotations

from olmorl.learner.batching.draw_ahead import VersionWait
from tests.learner.batching.manual_clock import ManualClock


def step(wait: VersionWait, time: ManualClock, *, held_up_s: float, train_s: float) -> None:
    """The learner waits for a straggler, then it trains."""
    if held_up_s:
        wait.held_up()
        time.seconds += held_up_s / 2
        wait.held_up()
        time.seconds += held_up_s / 2
    wait.step_began()
    time.seconds += train_s
    wait.step_ended()


def test_draws_wait_while_stragglers_cost_more_time_than_training() -> None:
    time = ManualClock()
    wait = VersionWait(time, steps=3)
    assert not wait.pays
    step(wait, time, held_up_s=0.0, train_s=2.0)
    assert not wait.pays
    step(wait, time, held_up_s=16.0, train_s=1.5)
    assert wait.pays
    step(wait, time, held_up_s=0.0, train_s=1.0)
    assert not wait.pays, "16 s of waiting, and four times 4.5 s of training"


def test_old_steps_are_forgotten() -> None:
    time = ManualClock()
    wait = VersionWait(time, steps=2)
    step(wait, time, held_up_s=50.0, train_s=1.0)
    step(wait, time, held_up_s=0.0, train_s=1.0)
    assert wait.pays
    step(wait, time, held_up_s=0.0, train_s=1.0)
    assert not wait.pays


def test_a_pause_holds_nobody_up() -> None:
    time = ManualClock()
    wait = VersionWait(time, steps=2)
    wait.held_up()
    wait.paused()
    step(wait, time, held_up_s=0.0, train_s=1.0)
    wait.held_up()
    time.seconds += 100.0
    wait.paused()
    step(wait, time, held_up_s=0.0, train_s=1.0)
    assert not wait.pays


def test_other_waits_of_the_learner_do_not_count() -> None:
    time = ManualClock()
    wait = VersionWait(time, steps=2)
    for _ in range(3):
        time.seconds += 100.0
        step(wait, time, held_up_s=0.0, train_s=1.0)
    assert not wait.pays
