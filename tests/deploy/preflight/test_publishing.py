"""What publishing costs the learner, worked by hand."""

from __future__ import annotations

import pytest

from olmorl import config
from olmorl.deploy.preflight.publishing import SHARE, PublishingPlan, publishing_plan

CLUSTER = {
    "run": {"name": "planned"},
    "learner": {"nodes": 4, "ranks_per_node": 8, "device": "cuda", "zero_stage": 3},
    "cluster": {"address": "auto", "gpus_per_node": 8},
}


def planned(**changes: object) -> PublishingPlan:
    """Of 8e9 parameters in bf16: 0.5 GB for each of 32 ranks."""
    return publishing_plan(config.build(CLUSTER | changes, "test"), 8 * 10**9, 16 * 10**9)


def test_the_parts_are_those_of_each_rank() -> None:
    found = planned()
    assert found.copy_s == pytest.approx(0.5 / 20)
    assert found.probe_s == pytest.approx(16 * 3 / 4 / 50 + 16 * 7 / 8 / 200)
    assert found.background_s == pytest.approx(0.5 / 1)
    assert planned(weights={"full_every": 8}).background_s == pytest.approx(0.5 / 0.25)
    assert planned(weights={"proof_tolerance": "off"}).probe_s == 0
    one_shard = {**CLUSTER["learner"], "zero_stage": 1}
    assert planned(learner=one_shard).probe_s == pytest.approx(16 / 2000), "every GPU has all weights, and reads them"
    slow = {**CLUSTER["cluster"], "peak": [100.0, 1000.0]}
    assert planned(learner=one_shard, cluster=slow).probe_s == pytest.approx(16 / 1000)
    alone = {**CLUSTER["learner"], "nodes": 1, "ranks_per_node": 1}
    assert planned(learner=alone).probe_s == pytest.approx(16 / 2000), "a single rank gathers nothing"


def test_a_step_that_is_shorter_than_the_publishing_waits_for_it() -> None:
    found = PublishingPlan(copy_s=0.1, probe_s=0.1, background_s=5.0, every=1)
    assert found.share(9.8) == pytest.approx(0.2 / 10)
    assert found.share(4.0) == pytest.approx(1.2 / 5.2)
    assert found.share(found.shortest_step_s) == pytest.approx(SHARE)
    slow = found._replace(background_s=50.0)
    assert slow.shortest_step_s == 50.0 and slow.share(50.0) < SHARE
    rare = found._replace(every=4)
    assert rare.share(2.45) == pytest.approx(0.05 / 2.5)
    assert rare.share(rare.shortest_step_s) == pytest.approx(SHARE)


def test_the_plan_says_from_which_step_time_on_it_is_little() -> None:
    rows = list(PublishingPlan(0.03, 0.46, 0.5, 1).rows())
    assert rows[0] == ("publishing", "copy to the host", "0.03 s  (assumed speed)")
    assert rows[-1] == ("", "the learner waits", "at most 2% of steps of 24 s or more")


def test_a_cpu_computes_the_probe() -> None:
    found = publishing_plan(config.build({"learner": {"ranks_per_node": 2}}, "test"), 10**8, 4 * 10**8)
    assert found.probe_s == pytest.approx(2 * 10**8 * 32 / 20e9)
    assert found.copy_s == pytest.approx(0.2)
