"""A failed episode is reported, and the other episodes of the campaign still run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.episode import Episode, _replayed_differently
from tests.chaos.rig import Ended, Hang
from tests.chaos.steps import Seen


def rig_that(error: Exception) -> Any:
    def start() -> None:
        raise error

    return SimpleNamespace(start=start, end=lambda: None)


@pytest.mark.parametrize(
    ("error", "hung"),
    [(Hang("no step"), True), (Ended("by itself"), False), (KeyError("a mistake of the suite"), False)],
)
def test_any_error_that_ends_it_is_a_violation(error: Exception, hung: bool) -> None:
    outcome = Episode(rig_that(error), seed=0).run(lambda: None)
    assert outcome.violations == [f"{type(error).__name__}: {error}"]
    assert outcome.hung is hung


class RigWithOrphan:
    """Something outlives the run, until the suite kills it."""

    patience_s = 1.0
    run = SimpleNamespace(wait=lambda timeout_s: 0)

    def __init__(self) -> None:
        self.orphan_lives = True
        self.steps: list[Any] = []

    def start(self) -> None: ...

    def more_steps(self, number: int) -> None: ...

    def stop(self) -> None: ...

    def left_behind(self) -> Iterator[str]:
        if self.orphan_lives:
            yield "orphans: an engine core"

    def end(self) -> None:
        self.orphan_lives = False


def test_what_outlives_a_run_is_found_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig: Any = RigWithOrphan()
    monkeypatch.setattr(Episode, "_judge", lambda self: None)
    outcome = Episode(rig, seed=0).run(lambda: None)
    assert outcome.violations == ["orphans: an engine core"]
    assert not rig.orphan_lives


def test_a_step_may_have_other_groups_only_after_the_run_went_back_before_it() -> None:
    done = [(1, 1, 10), (1, 2, 20), (1, 3, 30), (2, 1, 10), (2, 2, 21), (2, 3, 31)]
    seen = [
        Seen(0.0, {"incarnation": incarnation, "step": step, "batch_tokens": tokens, "batch_reward_mean": 0.5})
        for incarnation, step, tokens in done
    ]
    differ = [f"step {step} of incarnation 2 had other groups than before" for step in (2, 3)]
    assert list(_replayed_differently(seen, {})) == differ
    assert list(_replayed_differently(seen, {3: 1})) == []
    assert list(_replayed_differently(seen, {3: 2})) == differ[:1]
