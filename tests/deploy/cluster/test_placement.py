"""Where the processes of a recipe go."""

from __future__ import annotations

from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.cluster.placement import plan


@pytest.mark.parametrize(
    ("learner_nodes", "actor_nodes", "ranks", "engines"), [(1, 1, 4, 4), (2, 1, 8, 8), (1, 2, 8, 16), (3, 1, 8, 8)]
)
def test_without_an_address_only_two_nodes_share_a_host(
    tmp_path: Path, learner_nodes: int, actor_nodes: int, ranks: int, engines: int
) -> None:
    tree = {
        "run": {"directory": tmp_path, "name": "run"},
        "model": {"path": "none"},
        "cluster": {"gpus_per_node": 8},
        "learner": {"nodes": learner_nodes, "ranks_per_node": ranks},
        "actors": {"nodes": actor_nodes},
    }
    assert plan(config.build(tree)).engines == engines


@pytest.mark.parametrize(
    ("objective", "max_lag", "warns"),
    [
        ({"rho": "off"}, 8, True),
        ({"preset": "grpo"}, 1, True),
        ({"rho": "off"}, 0, False),
        ({}, 8, False),
        ({"preset": "grpo", "rho": 2.0}, 8, False),
        ({"rho": "off", "proximal": "behaviour"}, 8, False),
    ],
)
def test_the_plan_warns_where_nothing_corrects_for_stale_tokens(
    tmp_path: Path, objective: dict[str, object], max_lag: int, warns: bool
) -> None:
    tree = {
        "run": {"directory": tmp_path, "name": "run"},
        "model": {"path": "none"},
        "schedule": {"max_lag": max_lag},
        "objective": objective,
    }
    settings = config.build(tree)
    rows = dict(plan(settings).rows(settings))
    assert ("stale" in rows) == warns
    assert not warns or "set objective.rho = 2.0" in rows["stale"]


def test_processes_on_the_cpu_wait_without_spinning(tmp_path: Path) -> None:
    tree = {"run": {"directory": tmp_path, "name": "run"}, "model": {"path": "none"}, "learner": {"device": "cpu"}}
    assert plan(config.build(tree)).engine_environment()["OMP_WAIT_POLICY"] == "PASSIVE"
