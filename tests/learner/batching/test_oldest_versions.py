"""Draws that no actor has begun do not age."""

from __future__ import annotations

import pytest

from olmorl.learner.batching.scheduling import OldestVersions, slowest_engine
from olmorl.messages import ActorStatus, Version


def test_a_draw_ages_from_when_it_was_last_seen_in_the_queue() -> None:
    oldest = OldestVersions()
    assert oldest.of(7, 3) == 3
    oldest.not_begun([7, 8], 5, {7, 8})
    oldest.not_begun([8], 6, {7, 8})
    assert (oldest.of(7, 3), oldest.of(8, 3), oldest.of(9, 3)) == (5, 6, 3)
    oldest.not_begun([8], 4, {7, 8})
    assert (oldest.of(8, 3), oldest.of(8, 9)) == (6, 9)


def test_draws_that_ended_are_forgotten() -> None:
    oldest = OldestVersions()
    oldest.not_begun([7, 8], 5, {7, 8})
    oldest.not_begun([], 6, {8})
    assert (oldest.of(7, 3), oldest.of(8, 3)) == (3, 5)


def test_nothing_is_known_of_draws_whose_leases_may_be_lost() -> None:
    oldest = OldestVersions()
    oldest.not_begun([7], 5, {7})
    oldest.forget([7, 8])
    oldest.not_begun([7, 8, 9], 6, {7, 9})
    assert (oldest.of(7, 3), oldest.of(9, 3)) == (3, 6)
    oldest.not_begun([8], 6, {8, 9})
    assert oldest.of(8, 3) == 6


def statuses(*versions: Version | None) -> list[ActorStatus]:
    return [ActorStatus(name=f"a{n}", at=0.0, version=version) for n, version in enumerate(versions)]


@pytest.mark.parametrize(
    ("versions", "slowest"),
    [
        ([], None),
        ([Version(2, 5), Version(2, 3)], 3),
        ([Version(2, 5), None], None),  # it starts, with a version that is not known yet
        ([Version(2, 5), Version(1, 9)], None),  # it may go back to an older version
    ],
)
def test_the_slowest_engine_is_known_when_all_are(versions: list[Version | None], slowest: int | None) -> None:
    assert slowest_engine(statuses(*versions), incarnation=2) == slowest
