"""The placement of the largest shipped recipe: 8 learner nodes and 20 actor nodes, each a raylet with 8 faked GPUs.

Places, GPUs and environments are those of a real run on a real Ray, since the code that starts ranks and engines starts
the processes of this test. vLLM's own code makes the configuration of an engine in its place. Only the GPUs are faked.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import ray
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.deploy.arguments import parse
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.deploy.cluster.ray_cluster import BY_NODES, RayCluster, ReservedPlace
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.preflight import memory
from olmorl.deploy.processes import actor_process, rank_process
from olmorl.learner.trainer.pinned_memory import ALLOCATOR_SETTINGS
from tests.deploy.folders import olmo3

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
RECIPE = Path(__file__).resolve().parents[3] / "deploy" / "recipes" / "olmo3-32b-think.toml"
LEARNER_NODES, ACTOR_NODES, GPUS = 8, 20, 8
ANSWER_S = 240.0
SHOWN = ("OMP_", "VLLM_", "DS_")
"""Beginnings of the environment variables that are printed."""


class Seen(NamedTuple):
    """What a process finds in its place."""

    node: str
    gpus: tuple[str, ...]
    environment: dict[str, str]


class Placed:
    """A process in the place of a rank or of an engine."""

    def look(self) -> Seen:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return Seen(ray.get_runtime_context().get_node_id(), tuple(filter(None, visible.split(","))), dict(os.environ))

    def engine(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration that vLLM makes here of our arguments, on H100s as far as it can tell."""
        _fake_h100(len(self.look().gpus))
        from olmorl.actors.vllm_engine import arguments

        settings = config.build(tree)
        given = arguments.engine_arguments(settings.model, settings.actors, settings.max_model_len, settings.run.seed)
        # There is no tokenizer in the folder, and none of the weights.
        made = arguments.engine_config({**given, "skip_tokenizer_init": True})
        parallel, model = made.parallel_config, made.model_config
        return {
            "executor": parallel.distributed_executor_backend,
            "tensor_parallel": parallel.tensor_parallel_size,
            "world": parallel.world_size,
            "worker": parallel.worker_cls,
            "architecture": model.architecture,
            "heads": model.get_num_attention_heads(parallel),
            "key heads": model.get_num_kv_heads(parallel),
            "tokens": model.max_model_len,
            "sequences": made.scheduler_config.max_num_seqs,
            "tokens a step": made.scheduler_config.max_num_batched_tokens,
            "memory": made.cache_config.gpu_memory_utilization,
        }


def _fake_h100(gpus: int) -> None:
    """Have vLLM take this CPU build for a CUDA build on a host where it may use so many H100s."""
    kernels = "vllm._C_stable_libtorch"
    sys.modules[kernels] = ModuleType(kernels)
    platforms: Any = importlib.import_module("vllm.platforms")
    cuda: Any = importlib.import_module("vllm.platforms.cuda")

    class H100(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return cuda.DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * 10**9

        @classmethod
        def device_count(cls) -> int:
            return gpus

    platforms._current_platform = H100()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head without CPUs and the nodes, all on this machine."""
    # A folder of its own, for the sockets need short names and "auto" means the Ray that was started last.
    folder = tempfile.mkdtemp(prefix="o", dir="/tmp")
    common = {"object_store_memory": 80 << 20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_TMPDIR", folder)
        patched.setenv("RAY_raylet_start_wait_time_s", "200")
        patched.setenv("RAY_memory_monitor_refresh_ms", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
        try:
            for _ in range(LEARNER_NODES + ACTOR_NODES):
                cluster.add_node(wait=False, num_cpus=GPUS, num_gpus=GPUS, **common)
            cluster.wait_for_nodes(timeout=ANSWER_S)
            yield cluster.address
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def settings(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Config:
    """The recipe as the command line of the README gives it, with a folder for the model."""
    monkeypatch.setattr(hardware, "version", lambda name: "2.13.0")  # not a CPU build
    asked = ["--learner-nodes", str(LEARNER_NODES), "--actor-nodes", str(ACTOR_NODES), "--ray-address", address]
    arguments = parse([str(RECIPE), *asked, "--model.path", json.dumps(str(olmo3(tmp_path, "32b")))])
    loaded = config.load(arguments.recipe, arguments.overrides)
    # The number of GPUs is left to what Ray reports.
    return loaded.model_copy(update={"cluster": loaded.cluster.model_copy(update={"gpus_per_node": None})})


class Group(NamedTuple):
    """What the processes of one node or engine found."""

    name: str
    seen: list[Seen]


async def look(processes: Sequence[RemoteProcess]) -> list[Seen]:
    """What they find; they are ended, for 84 processes at once are many for a small machine."""
    try:
        return await asyncio.gather(*(process.call("look", timeout_s=ANSWER_S) for process in processes))
    finally:
        for process in processes:
            process.kill()


async def of_ranks(cluster: RayCluster, placed: Placement) -> tuple[list[ReservedPlace], list[Group]]:
    """ReservedPlace the learner, and start all ranks, one node after the other."""
    places = await cluster.place_learner()
    found = []
    for node in range(placed.learner_nodes):
        ranks = range(node * placed.ranks_per_node, (node + 1) * placed.ranks_per_node)
        started = [rank_process.start(cluster, placed, Placed, f"learner-{rank}", places[rank]) for rank in ranks]
        found.append(Group(f"ranks {ranks[0]} to {ranks[-1]}", await look(started)))
    return places, found


async def of_engines(cluster: RayCluster, placed: Placement) -> tuple[list[ReservedPlace], list[Group]]:
    """ReservedPlace all engines at once, as a run does, and start one after the other."""
    waits = (cluster.place_engine(cluster.config.cluster.wait_s, BY_NODES) for _ in range(placed.engines))
    places = await asyncio.gather(*waits)
    found = []
    for number, place in enumerate(places):
        name = f"actor-{number}"
        found.append(Group(name, await look([actor_process.start(cluster, placed, Placed, name, place)])))
    return places, found


async def engine_made(cluster: RayCluster, placed: Placement, place: ReservedPlace) -> dict[str, Any]:
    """vLLM's configuration in the place of an engine."""
    process = actor_process.start(cluster, placed, Placed, "engine", place)
    try:
        made: dict[str, Any] = await process.call(
            "engine", cluster.config.model_dump(mode="json"), timeout_s=cluster.config.actors.start_deadline_s
        )
        return made
    finally:
        process.kill()


def show(groups: Sequence[Group], engine: Mapping[str, Any], plan: memory.MemoryPlan) -> None:
    """Print the whole placement."""
    table = Table("node", "processes", "GPUs", "environment", title="8 + 20 nodes")
    for group in groups:
        first = group.seen[0]
        kept = [f"{key}={value}" for key, value in sorted(first.environment.items()) if key.startswith(SHOWN)]
        gpus = " ".join(",".join(seen.gpus) for seen in group.seen)
        table.add_row(first.node[:8], group.name, gpus, " ".join(kept))
    console = Console(width=140)
    console.print(table)
    made = Table("engine", "", title="by vLLM's own code, in its place")
    for key, value in engine.items():
        made.add_row(key, str(value))
    console.print(made)
    parts = Table("where", "what", "", title="memory and disk")
    for row in plan.rows():
        parts.add_row(*row)
    console.print(parts)


def test_eight_learner_nodes_and_twenty_actor_nodes(settings: config.Config) -> None:
    with RayCluster(settings, "whole", outlives_launcher=False) as cluster:
        assert (cluster.config.learner.device, cluster.config.cluster.gpus_per_node) == ("cuda", GPUS)
        assert cluster.hardware == "hardware: GPUs; Ray reports 28 node(s) with 8 GPU(s)"
        placed = plan(cluster.config)
        assert (placed.ranks, placed.engines, placed.gpus_per_engine) == (64, 20, 8)

        async def place_all() -> tuple[list[Group], list[Group], dict[str, Any], list[ReservedPlace]]:
            learner, ranks = await of_ranks(cluster, placed)
            places, engines = await of_engines(cluster, placed)
            engine = await engine_made(cluster, placed, places[0])
            free = ray.available_resources().get("GPU", 0.0)
            assert free == 0.0, "ranks and engines have every GPU"
            return ranks, engines, engine, [learner[0], *places]

        ranks, engines, engine, places = asyncio.run(place_all())
        found = memory.memory_plan(cluster.config)
        show([*ranks, *engines], engine, found)
        for place in places:
            cluster.give_up(place)

    check_places(ranks, engines)
    check_environments(ranks, engines, cluster.config)
    assert engine == {
        "executor": "mp",
        "tensor_parallel": 8,
        "world": 8,
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "architecture": "Olmo3ForCausalLM",
        "heads": 5,
        "key heads": 1,
        "tokens": 34_816,
        "sequences": cluster.config.actors.max_running,
        "tokens a step": memory.BATCHED_TOKENS_LARGE,
        "memory": cluster.config.actors.gpu_memory_utilization,
    }
    assert found.overfull is None
    assert {place.name for place in found.places} == {
        "a learner GPU",
        "an engine GPU",
        "an engine GPU, outside the engine",
        "a host of the learner",
        "a host of engines",
    }


def check_places(ranks: Sequence[Group], engines: Sequence[Group]) -> None:
    """Each node has eight ranks with a GPU each, or one engine with all GPUs."""
    every = tuple(str(number) for number in range(GPUS))
    for node in ranks:
        assert len({seen.node for seen in node.seen}) == 1, "the ranks of a node are on one node"
        assert sorted(seen.gpus for seen in node.seen) == [(gpu,) for gpu in every]
    assert all(seen.gpus == every for engine in engines for seen in engine.seen)
    nodes = Counter(group.seen[0].node for group in (*ranks, *engines))
    assert len(nodes) == LEARNER_NODES + ACTOR_NODES and set(nodes.values()) == {1}


def check_environments(ranks: Sequence[Group], engines: Sequence[Group], settings: config.Config) -> None:
    """GPUs for torch and DeepSpeed; threads as the recipe says for ranks, and as many as vLLM wants for engines."""
    for seen in (seen for node in ranks for seen in node.seen):
        assert seen.environment["OMP_NUM_THREADS"] == str(settings.learner.threads)
        assert "DS_ACCELERATOR" not in seen.environment
        assert seen.environment["PYTORCH_ALLOC_CONF"] == ALLOCATOR_SETTINGS
    for seen in (seen for engine in engines for seen in engine.seen):
        assert seen.environment["VLLM_NO_USAGE_STATS"] == seen.environment["VLLM_DO_NOT_TRACK"] == "1"
        assert seen.environment["TOKENIZERS_PARALLELISM"] == "false"
