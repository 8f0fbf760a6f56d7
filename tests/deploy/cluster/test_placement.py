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
