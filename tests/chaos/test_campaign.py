"""Each way in which the learner may run is set in a campaign with real engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from olmorl.config import Config
from tests.chaos import campaign
from tests.chaos.campaign import Campaign

IN_A_PUBLISH = "SIGKILL learner rank in a publish"


def ways(settings: Config) -> Iterator[str]:
    """The ways of this recipe."""
    learner = settings.learner
    if learner.sequence_parallel > 1:
        yield "sequence parallelism"
    if learner.ranks_per_node > 1:
        yield "sharded publishing"
    if settings.has_deltas:
        yield "deltas"
    zero = learner.deepspeed.get("zero_optimization", {})
    if learner.zero_stage == 3 and zero.get("stage3_param_persistence_threshold") == 0:
        yield "sharded weights"  # without that, DeepSpeed keeps small weights whole, and those of these runs are small


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (campaign.real, set()),
        (campaign.shared_rows, {"sequence parallelism", "sharded publishing", "sharded weights"}),
        (campaign.deltas_in_files, {"sequence parallelism", "sharded publishing", "sharded weights", "deltas"}),
        (campaign.deltas_in_ray, {"sharded publishing", "deltas"}),
    ],
)
def test_a_campaign_sets_what_it_is_for(make: Callable[[Path], Campaign], expected: set[str], tmp_path: Path) -> None:
    chosen = make(tmp_path / "policy")
    with chosen.make(tmp_path) as rig:
        assert set(ways(rig.settings)) == expected
        assert IN_A_PUBLISH not in chosen.faults or rig.settings.weight_store == "file"
    assert (IN_A_PUBLISH in chosen.faults) == ("sequence parallelism" in expected)
    assert ("corrupt base of a delta" in chosen.faults) == ("deltas" in expected)
