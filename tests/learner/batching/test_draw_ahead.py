"""How many draws must be under way, from measured times."""

from __future__ import annotations

from itertools import pairwise

import pytest

from olmorl.learner.batching.draw_ahead import DrawAhead, Rates, draws_to_finish, unfinished_needed
from tests.learner.batching.manual_clock import ManualClock


def needed(draw_s: float, *, elapsed_s: float = 0.0, ready: int = 0, margin: float = 1.0, waiting: bool = False) -> int:
    """With steps of 10 s, batches of 8, and a gradient in every group."""
    rates = Rates(draw_s=draw_s, step_s=10.0, useful=1.0, busy=0.1)
    return unfinished_needed(rates, elapsed_s=elapsed_s, margin=margin, ready=ready, batch=8, waiting=waiting)


@pytest.mark.parametrize(
    ("groups", "useful", "draws"),
    [
        (0, 0.5, 0),
        (-3, 0.5, 0),
        (8, 1.0, 8),
        (12, 0.5, 36),  # 18 on average, less two standard deviations of 3
        (12, 0.2, 100),  # 20 on average, less two standard deviations of 4
    ],
)
def test_spares_replace_groups_without_a_gradient(groups: int, useful: float, draws: int) -> None:
    assert draws_to_finish(groups, useful) == draws


def test_only_batches_that_are_due_within_a_draw_time_need_draws() -> None:
    assert needed(3.0) == 8  # the next batch, always
    assert needed(19.0) == 8
    assert needed(25.0) == 16
    assert needed(25.0, elapsed_s=6.0) == 24
    assert needed(25.0, margin=2.0) == 40


def test_ready_groups_need_no_draws() -> None:
    assert needed(25.0, ready=5) == 11
    assert needed(25.0, ready=40) == 0


def test_a_waiting_learner_needs_one_batch_more() -> None:
    assert needed(3.0, waiting=True) == 16


def test_more_is_needed_the_slower_the_draws() -> None:
    counts = [needed(float(seconds)) for seconds in range(1, 100)]
    assert all(before <= after for before, after in pairwise(counts))


def train(ahead: DrawAhead, clock: ManualClock, step_s: float, wait_s: float, busy: float = 0.25) -> None:
    """One step, and the wait for the next batch."""
    clock.seconds += step_s
    for share in (0.0, 2 * busy):
        ahead.engines_busy(share)
    ahead.step_ended()
    clock.seconds += wait_s
    ahead.step_began()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def measured(clock: ManualClock) -> DrawAhead:
    """After four steps of 10 s; draws took 25 s, and half of them were useful."""
    ahead = DrawAhead(clock, batch=8)
    ahead.drawn(range(16))
    clock.seconds = 25.0
    for draw_id in range(16):
        ahead.finished(draw_id, useful=draw_id % 2 == 0)
    ahead.step_began()
    for _ in range(4):
        train(ahead, clock, 10.0, 0.0)
    return ahead


def test_nothing_is_known_at_the_start(clock: ManualClock) -> None:
    ahead = DrawAhead(clock, batch=8)
    assert ahead.rates is None
    assert ahead.needed(0) is None


def test_the_rest_of_a_run_has_spares_once_the_share_of_useful_groups_is_known(clock: ManualClock) -> None:
    ahead = DrawAhead(clock, batch=8)
    for draw_id in range(7):
        ahead.finished(draw_id, useful=draw_id % 2 == 0)
    assert ahead.draws_to_finish(12) == 12
    ahead.finished(7, useful=False)
    assert ahead.draws_to_finish(12) == 36
    assert ahead.draws_to_finish(0) == 0


def test_without_a_useful_group_yet_no_share_is_known(clock: ManualClock) -> None:
    ahead = DrawAhead(clock, batch=2)
    for draw_id in range(5):
        ahead.finished(draw_id, useful=False)
    assert ahead.draws_to_finish(12) == 12


def test_results_of_an_earlier_start_give_no_draw_time(clock: ManualClock) -> None:
    ahead = DrawAhead(clock, batch=1)
    for _ in range(4):
        ahead.step_began()
        clock.seconds += 10.0
        ahead.step_ended()
    ahead.finished(7, useful=True)
    assert ahead.rates is None


def test_draws_that_ended_without_a_result_are_forgotten(measured: DrawAhead, clock: ManualClock) -> None:
    measured.drawn([16, 17])
    measured.forget_all_but({17})
    clock.seconds += 1000.0
    measured.finished(16, useful=True)
    assert measured.rates == Rates(draw_s=25.0, step_s=10.0, useful=9 / 17, busy=0.25)
    for _ in range(16):
        measured.drawn([17])
        clock.seconds += 50.0
        measured.finished(17, useful=True)
    assert measured.rates.draw_s == 50.0


def test_rates_are_those_that_were_measured(measured: DrawAhead) -> None:
    assert measured.rates == Rates(draw_s=25.0, step_s=10.0, useful=0.5, busy=0.25)


def test_engines_with_little_reserve_draw_as_far_ahead_as_they_may(measured: DrawAhead, clock: ManualClock) -> None:
    assert measured.needed(0) is not None
    train(measured, clock, 10.0, 0.0, busy=0.5)
    train(measured, clock, 10.0, 0.0, busy=0.5)
    assert measured.rates is not None
    assert measured.rates.busy == pytest.approx(0.375)  # the mean over the last four steps
    assert measured.needed(0) is not None
    train(measured, clock, 10.0, 0.0, busy=0.5)
    assert measured.needed(0) is None
    for _ in range(4):
        train(measured, clock, 10.0, 0.0, busy=0.25)
    assert measured.needed(0) is not None


def test_a_pause_is_no_wait_and_no_draw_time(measured: DrawAhead, clock: ManualClock) -> None:
    rates, needed = measured.rates, measured.needed(0)
    measured.drawn([100])
    clock.seconds += 10.0
    for share in (0.0, 0.5):
        measured.engines_busy(share)
    measured.step_ended()
    measured.paused()
    clock.seconds += 3600.0
    measured.paused()
    measured.step_began()
    measured.finished(100, useful=True)
    measured.finished(101, useful=False)
    found = measured.rates
    assert found is not None and rates is not None
    assert (found.draw_s, found.step_s, measured.needed(0)) == (rates.draw_s, rates.step_s, needed)


def test_nothing_is_known_before_the_engines_were_seen(clock: ManualClock) -> None:
    ahead = DrawAhead(clock, batch=1)
    ahead.drawn([1])
    clock.seconds = 5.0
    ahead.finished(1, useful=True)
    ahead.step_began()
    for _ in range(4):
        clock.seconds += 10.0
        ahead.step_ended()
        ahead.step_began()
    assert ahead.needed(0) is None
    train(ahead, clock, 10.0, 0.0)
    assert ahead.needed(0) == 1


def test_one_wait_raises_the_depth_at_once_and_ready_batches_lower_it_slowly(
    measured: DrawAhead, clock: ManualClock
) -> None:
    before = measured.needed(0)
    train(measured, clock, 10.0, 5.0)
    raised = measured.needed(0)
    assert before is not None
    assert raised is not None
    assert raised > before
    train(measured, clock, 10.0, 0.0)
    assert measured.needed(0) == raised
    for _ in range(300):
        train(measured, clock, 10.0, 0.0)
    assert measured.needed(0) == before
