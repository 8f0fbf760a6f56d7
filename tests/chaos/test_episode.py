"""An episode that comes to no good end says so, and costs the campaign no other episode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.episode import Episode
from tests.chaos.rig import Ended, Hang


def rig_that(error: Exception) -> Any:
    def start() -> None:
        raise error

    return SimpleNamespace(start=start, run=SimpleNamespace(processes=list))


@pytest.mark.parametrize(
    ("error", "hung"),
    [(Hang("no step"), True), (Ended("by itself"), False), (KeyError("a mistake of the suite"), False)],
)
def test_whatever_ends_it_is_a_violation(error: Exception, hung: bool) -> None:
    outcome = Episode(rig_that(error), seed=0).run(lambda: None)
    assert outcome.violations == [f"{type(error).__name__}: {error}"]
    assert outcome.hung is hung
