"""The placement of the largest shipped recipe on 28 hosts of network namespaces: 8 learner nodes and 20 actor nodes.

Each host has an address, processes and shared memory of its own, a raylet and 8 faked GPUs. `whole_placement.py` runs
on the head and prints the placement.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.preflight import memory
from olmorl.learner.trainer.pinned_memory import ALLOCATOR_SETTINGS
from tests.deploy.cluster import whole_placement
from tests.deploy.cluster.whole_placement import ACTOR_NODES, GPUS, LEARNER_NODES, Group, Seen
from tests.deploy.folders import olmo3
from tests.hosts.lan import Lan, missing
from tests.hosts.ray_cluster import RayCluster

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]
NODES = [f"node-{number}" for number in range(LEARNER_NODES + ACTOR_NODES)]
OBJECTS_BYTES = 80 << 20
SMALL = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0", "REPORTER_UPDATE_INTERVAL_MS": "600000"}
"""On no host Ray watches the memory, which is that of this machine, or reports what is used, or lowers priorities."""
PLACED_S = 900.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    """A head without CPUs and the nodes."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "hosts").mkdir()
    with Lan(tmp_path / "hosts") as lan:
        cluster = RayCluster(lan, [tmp_path], OBJECTS_BYTES, **SMALL)
        cluster.join(*NODES, cpus=GPUS, gpus=GPUS)
        yield cluster


def test_eight_learner_nodes_and_twenty_actor_nodes(cluster: RayCluster, tmp_path: Path) -> None:
    model, file = olmo3(tmp_path, "32b"), tmp_path / "found.json"
    program = [sys.executable, "-m", whole_placement.__name__, cluster.address, str(model), str(file)]
    print(cluster.head.run(program, PLACED_S, **cluster.environment))
    found = json.loads(file.read_text())
    ranks, engines = (
        [Group(group["name"], [Seen(**seen) for seen in group["seen"]]) for group in found[kind]]
        for kind in ("ranks", "engines")
    )
    assert (found["device"], found["gpus_per_node"]) == ("cuda", GPUS)
    assert found["hardware"] == "hardware: GPUs; Ray reports 28 node(s) with 8 GPU(s)"
    assert [len(group.seen) for group in ranks] == [8] * 8
    assert [len(group.seen) for group in engines] == [1] * 20
    assert found["free_gpus"] == 0.0, "ranks and engines have every GPU"
    check_places(ranks, engines, {name: host.address for name, host in cluster.hosts.items()})
    settings = whole_placement.recipe(cluster.address, model)
    check_environments(ranks, engines, settings)
    assert found["engine"] == {
        "executor": "mp",
        "tensor_parallel": 8,
        "world": 8,
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "architecture": "Olmo3ForCausalLM",
        "heads": 5,
        "key heads": 1,
        "tokens": 34_816,
        "sequences": settings.actors.max_running,
        "tokens a step": memory.BATCHED_TOKENS_LARGE,
        "memory": settings.actors.gpu_memory_utilization,
    }
    assert found["memory"] == dict.fromkeys(
        (
            "a learner GPU",
            "an engine GPU",
            "a host of the learner",
            "a host of engines",
        ),
        True,
    )


def check_places(ranks: Sequence[Group], engines: Sequence[Group], addresses: dict[str, str]) -> None:
    """Each host has eight ranks with a GPU each, or one engine with all GPUs, at the host's own address."""
    every = [str(number) for number in range(GPUS)]
    for node in ranks:
        assert len({seen.host for seen in node.seen}) == 1, "the ranks of a node are on one host"
        assert sorted(seen.gpus for seen in node.seen) == [[gpu] for gpu in every]
    assert all(seen.gpus == every for engine in engines for seen in engine.seen)
    groups = (*ranks, *engines)
    assert sorted(group.seen[0].host for group in groups) == sorted(NODES)
    assert len({addresses[name] for name in NODES}) == len(NODES)
    assert all(seen.address == addresses[seen.host] for group in groups for seen in group.seen)


def check_environments(ranks: Sequence[Group], engines: Sequence[Group], settings: config.Config) -> None:
    """GPUs for torch and DeepSpeed; threads as the recipe says for ranks, and as many as vLLM wants for engines."""
    for seen in (seen for node in ranks for seen in node.seen):
        assert seen.environment["OMP_NUM_THREADS"] == str(settings.learner.threads)
        assert "DS_ACCELERATOR" not in seen.environment
        assert seen.environment["PYTORCH_ALLOC_CONF"] == ALLOCATOR_SETTINGS
    for seen in (seen for engine in engines for seen in engine.seen):
        assert seen.environment["VLLM_NO_USAGE_STATS"] == seen.environment["VLLM_DO_NOT_TRACK"] == "1"
        assert seen.environment["TOKENIZERS_PARALLELISM"] == "false"
