"""A run that gives only useless results ends, and names the last one."""

from __future__ import annotations

import pytest

from olmorl.errors import NothingToLearn, RunEnded
from olmorl.learner.orchestrator.batcher import MOST_UNSCORABLE, ResultStreaks


def test_groups_without_a_gradient_end_the_run_when_they_come_in_a_row() -> None:
    streaks = ResultStreaks(3)
    for has_gradient in (False, False, True, False, False):
        streaks.scored(has_gradient=has_gradient)
        streaks.check()
    streaks.scored(has_gradient=False)
    with pytest.raises(NothingToLearn, match="3 groups in a row"):
        streaks.check()


def test_failures_do_not_end_a_streak_of_groups_without_a_gradient() -> None:
    streaks = ResultStreaks(2)
    streaks.scored(has_gradient=False)
    streaks.failure("row:1", "over_long", "")
    streaks.scored(has_gradient=False)
    with pytest.raises(NothingToLearn):
        streaks.check()


def test_failed_draws_end_the_run_and_the_last_is_named() -> None:
    streaks = ResultStreaks(2)
    streaks.failure("row:1", "over_long", "")
    streaks.check()
    streaks.failure("row:2", "unscorable", "judge_down: refused")
    with pytest.raises(RunEnded, match=r"2 prompt.*row:2: unscorable: judge_down: refused \(schedule"):
        streaks.check()
    streaks.scored(has_gradient=True)
    assert (streaks.failed, streaks.failures) == (0, "")


@pytest.mark.parametrize(("detail", "ends"), [("broken: KeyError", True), ("judge_down: refused", False)])
def test_a_broken_verifier_ends_the_run_early_and_a_service_that_is_down_does_not(detail: str, ends: bool) -> None:
    streaks = ResultStreaks(1000)
    for _ in range(MOST_UNSCORABLE):
        streaks.check()
        streaks.failure("row:1", "unscorable", detail)
    if ends:
        with pytest.raises(RunEnded, match="correct the verifier"):
            streaks.check()
    else:
        streaks.check()
