"""Faults in the middle of turns, in simulated time: a short form of `python -m tests.chaos episodes`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.episodes import OF_AGENTS, OF_ALL, OF_ENVIRONMENTS, play
from tests.chaos.table import judged

pytestmark = pytest.mark.timeout(300)
DEATHS = ("actor killed", "learner killed") * 6


@pytest.mark.parametrize(
    ("dealt", "agents"),
    [([*OF_ENVIRONMENTS, *OF_ALL], False), ([*OF_AGENTS, *OF_ALL], True), (DEATHS, False)],
    ids=["environments", "agents", "deaths"],
)
def test_no_token_is_lost_or_doubled_and_no_failure_is_scored(
    dealt: Sequence[str], agents: bool, tmp_path: Path
) -> None:
    outcome = play(tmp_path, print, 6, dealt, agents=agents)
    assert outcome.violations == []
    assert [record.fault for record in outcome.records] == list(dealt)
    assert judged([outcome])["hangs"] == 0
