"""Admission by hand: how many sequences and prompts an actor may take."""

from __future__ import annotations

import pytest

from olmorl import config
from olmorl.actors.admission import HeldSequences, Lane, evaluation_room, groups, lanes, room, slots
from olmorl.ports import EngineLoad

IDLE = EngineLoad(running=0, waiting=0, kv_used=0.0, max_running=32)
NOTHING = HeldSequences(generating=0, unverified=0, evaluation=0)


def test_lanes_of_evaluation_come_before_training() -> None:
    sampling, evaluation = config.SamplingSettings(group_size=8), config.Evaluation(samples=2)
    assert lanes(sampling, evaluation, ["gsm8k", "aime"]) == (Lane("gsm8k", 2), Lane("aime", 2), Lane("train", 8))


@pytest.mark.parametrize(
    ("running", "kv_used", "expected"),
    [
        (0, 0.0, 32),
        (10, 0.0, 32),
        (10, 0.1, 32),  # each holds 1%: 90 would fit
        (20, 0.9, 20),  # exactly what is running
        (20, 0.6, 30),  # each holds 3%
        (20, 1.0, 18),
    ],
)
def test_slots_are_what_the_cache_holds_of_sequences_as_they_are(running: int, kv_used: float, expected: int) -> None:
    assert slots(EngineLoad(running, 0, kv_used, 32), kv_headroom=0.1) == expected


def test_an_idle_engine_takes_its_batch_and_then_the_waiting_list() -> None:
    assert room(IDLE, NOTHING, max_waiting=8, kv_headroom=0.1) == 32
    assert room(IDLE, HeldSequences(generating=32, unverified=0, evaluation=0), max_waiting=8, kv_headroom=0.1) == 8


def test_sequences_that_the_engine_does_not_show_yet_count() -> None:
    assert room(IDLE, HeldSequences(generating=30, unverified=0, evaluation=0), max_waiting=8, kv_headroom=0.1) == 2


def test_a_full_cache_leaves_no_room_though_slots_are_free() -> None:
    load = EngineLoad(running=16, waiting=0, kv_used=0.95, max_running=32)
    assert room(load, HeldSequences(generating=16, unverified=0, evaluation=0), max_waiting=0, kv_headroom=0.1) == 0


def test_preempted_sequences_leave_no_room() -> None:
    load = EngineLoad(running=24, waiting=16, kv_used=0.5, max_running=32)
    assert room(load, HeldSequences(generating=40, unverified=0, evaluation=0), max_waiting=8, kv_headroom=0.1) == 0


def test_a_backlog_of_verification_bounds_the_leases() -> None:
    assert room(IDLE, HeldSequences(generating=0, unverified=70, evaluation=0), max_waiting=8, kv_headroom=0.1) == 10
    assert room(IDLE, HeldSequences(generating=0, unverified=90, evaluation=0), max_waiting=8, kv_headroom=0.1) == 0


@pytest.mark.parametrize(
    ("free", "evaluating", "share", "expected"),
    [(40, 0, 0.25, 8), (40, 6, 0.25, 2), (40, 9, 0.25, 0), (1, 0, 0.25, 1), (40, 0, 0.001, 1)],
)
def test_evaluation_gets_its_share_and_at_least_one(free: int, evaluating: int, share: float, expected: int) -> None:
    held = HeldSequences(generating=evaluating, unverified=0, evaluation=evaluating)
    assert evaluation_room(free, IDLE, held, share) == expected


@pytest.mark.parametrize(("sequences", "expected"), [(0, 0), (-3, 0), (1, 1), (8, 1), (9, 2), (40, 5)])
def test_groups_fill_every_slot(sequences: int, expected: int) -> None:
    assert groups(sequences, group_size=8) == expected
