"""How much is drawn, how old tokens are, and which groups a step takes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.errors import RunEnded
from olmorl.learner.batching.scheduling import Deadline, choose, deadline, draws_allowed, survives, token_lags
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Group, Version

MakeGroup = Callable[..., Group]


def allowed(live: int, published: int, done: int, *, to_finish: int = 1000, batch: int = 10, ahead: int = 2) -> int:
    return draws_allowed(live=live, published=published, done=done, to_finish=to_finish, batch=batch, ahead=ahead)


@pytest.mark.parametrize(
    ("live", "published", "done", "expected"),
    [
        (0, 0, 0, 30),  # the batch of version 0 and two ahead
        (30, 0, 0, 0),
        (20, 0, 1, 0),  # a step later, still unpublished: nothing new
        (20, 1, 1, 10),
        (27, 1, 1, 3),  # replaces filtered groups
    ],
)
def test_draws_keep_the_pipeline_full_and_no_fuller(live: int, published: int, done: int, expected: int) -> None:
    assert allowed(live, published, done) == expected


def test_the_rest_of_the_run_bounds_the_draws() -> None:
    assert allowed(15, 98, 98, to_finish=20) == 5
    assert allowed(15, 98, 98, to_finish=50) == 15, "the lag bounds the spares"
    assert allowed(0, 100, 100, to_finish=0) == 0


def test_without_lag_only_the_batch_of_the_published_version_is_drawn() -> None:
    assert allowed(0, 4, 4, ahead=0) == 10
    assert allowed(7, 4, 4, ahead=0) == 3
    assert allowed(0, 4, 5, ahead=0) == 0


STARTS = [Start(1, 0, 0), Start(2, 4, 6), Start(3, 2, 2)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 2), True),
        ((1, 3), False),  # start 3 went back to 2
        ((2, 2), True),
        ((2, 5), False),
        ((3, 9), True),
    ],
)
def test_versions_behind_a_rollback_do_not_survive(version: tuple[int, int], expected: bool) -> None:
    assert survives(Version(*version), STARTS) == expected


def test_versions_that_a_replay_makes_again_survive() -> None:
    starts = [Start(1, 0, 0), Start(2, 4, 6)]
    assert survives(Version(1, 6), starts)
    assert not survives(Version(1, 7), starts)


def test_the_oldest_number_sets_the_deadline_even_across_incarnations(make_group: MakeGroup) -> None:
    group = make_group(0, versions=[Version(1, 5), Version(2, 4)])
    starts = [Start(1, 0, 0), Start(2, 4, 5)]
    assert deadline(group, 3, starts) == 7
    assert deadline(group, 3, [*starts, Start(3, 4, 4)]) == -1


def test_lags_follow_the_spans(make_group: MakeGroup) -> None:
    completion = make_group(0, versions=[Version(1, 3), Version(1, 5)], tokens=6).completions[0]
    assert token_lags(completion, 5, 2, [Start(1, 0, 0)]).tolist() == [2, 2, 2, 0, 0, 0]
    assert token_lags(completion, 5, 2, [Start(1, 0, 0), Start(2, 3, 3)]).tolist() == [2, 2, 2, 3, 3, 3]


def test_a_token_from_the_future_is_an_error(make_group: MakeGroup) -> None:
    completion = make_group(0, versions=[Version(1, 6)]).completions[0]
    with pytest.raises(RunEnded, match=r"1\.6 arrived for a step that trains version 5"):
        token_lags(completion, 5, 2, [Start(1, 0, 0)])


def candidates(*deadlines: int) -> list[Deadline]:
    return [Deadline(last, arrival, 100 - arrival) for arrival, last in enumerate(deadlines)]


def test_the_due_are_taken_first_and_come_in_the_order_of_their_draws() -> None:
    chosen = choose(candidates(9, 5, 9, 9), [], version=5, batch=2)
    assert [candidate.draw_id for candidate in chosen or []] == [99, 100]


def test_too_few_groups_are_waited_for() -> None:
    assert choose(candidates(9), [], version=5, batch=2) is None


def test_an_unfinished_group_that_is_due_is_waited_for() -> None:
    assert choose(candidates(9, 9), [5], version=5, batch=2) is None
    assert choose(candidates(9, 9), [6], version=5, batch=2) is not None


def test_later_steps_must_have_room_for_all_that_falls_due() -> None:
    assert choose(candidates(9, 9), [6, 6], version=5, batch=2) is not None
    assert choose(candidates(9, 9), [6, 6, 6], version=5, batch=2) is None
    assert choose(candidates(6, 9, 9), [6, 6], version=5, batch=2) is not None
    assert choose(candidates(6, 6, 6, 9), [6, 6], version=5, batch=2) is None


def test_without_awaited_groups_the_batch_does_not_wait() -> None:
    assert choose(candidates(5, 5, 5, 5, 5), [], version=5, batch=2) is not None


@settings(deadline=None)
@given(
    st.lists(st.integers(5, 9), min_size=2, max_size=12),
    st.lists(st.integers(5, 9), max_size=6),
    st.randoms(use_true_random=False),
)
def test_no_other_choice_meets_deadlines_that_this_one_misses(
    ready: list[int], unfinished: list[int], random: Random
) -> None:
    batch, version = 2, 5
    if choose(candidates(*ready), unfinished, version, batch) is not None:
        return
    other = list(ready)
    random.shuffle(other)
    rest = [*other[batch:], *unfinished]
    missed = any(
        sum(last <= limit for last in rest) > max(limit - version, 0) * batch
        and any(last <= limit for last in unfinished)
        for limit in range(5, 10)
    )
    assert missed
