"""Builds the placement of the largest shipped recipe on a Ray cluster: `whole_placement.py ADDRESS MODEL FILE`.

Places, GPUs and environments are those of a real run on a real Ray, since the code that starts ranks and engines starts
the processes of this program. vLLM's own code makes the configuration of an engine in its place. Only the GPUs are
faked. The placement is printed, and written to FILE as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from olmorl.deploy.credentials import guard_ray

if __name__ == "__main__":
    guard_ray(own=False)  # Ray reads its environment when it is imported

import ray
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.deploy.arguments import parse
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.deploy.cluster.ray_cluster import BY_NODES, RayCluster, ReservedPlace, node_address
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.preflight import memory
from olmorl.deploy.processes import actor_process, rank_process

RECIPE = Path(__file__).resolve().parents[3] / "deploy" / "recipes" / "olmo3-32b-think.toml"
LEARNER_NODES, ACTOR_NODES, GPUS = 8, 20, 8
ANSWER_S = 240.0
SHOWN = ("OMP_", "PYTORCH_", "VLLM_", "DS_")
"""Beginnings of the environment variables that are printed."""


@dataclass
class Seen:
    """What a process finds in its place."""

    host: str
    address: str
    """Where the process would listen for others."""
    gpus: list[str]
    environment: dict[str, str]


@dataclass
class Group:
    """What the ranks of one node, or one engine, found."""

    name: str
    seen: list[Seen]


class Placed:
    """A process in the place of a rank or of an engine."""

    def look(self) -> dict[str, Any]:
        """What `Seen` says."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = [gpu for gpu in visible.split(",") if gpu]
        return asdict(Seen(socket.gethostname(), node_address(), gpus, dict(os.environ)))

    def engine(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration that vLLM makes here of our arguments, on H100s as far as it can tell."""
        _fake_h100(len(self.look()["gpus"]))
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
    # The kernels, and what would import more of them to write vLLM's cache of inspected models.
    for name in ("vllm._C_stable_libtorch", "vllm.model_executor.model_loader.weight_utils"):
        sys.modules[name] = MagicMock()
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


def recipe(address: str, model: Path) -> config.Config:
    """The recipe as the command line of the README gives it, with a folder for the model."""
    asked = ["--learner-nodes", str(LEARNER_NODES), "--actor-nodes", str(ACTOR_NODES), "--ray-address", address]
    arguments = parse([str(RECIPE), *asked, "--model.path", json.dumps(str(model))])
    loaded = config.load(arguments.recipe, arguments.overrides)
    # The number of GPUs is left to what Ray reports.
    return loaded.model_copy(update={"cluster": loaded.cluster.model_copy(update={"gpus_per_node": None})})


async def look(processes: Sequence[RemoteProcess]) -> list[Seen]:
    """What they find; they are ended, for 84 processes at once are many for a small machine."""
    try:
        found = await asyncio.gather(*(process.call("look", timeout_s=ANSWER_S) for process in processes))
        return [Seen(**one) for one in found]
    finally:
        for process in processes:
            process.kill()


async def of_ranks(cluster: RayCluster, placed: Placement) -> tuple[list[ReservedPlace], list[Group]]:
    """Reserve the learner, and start all ranks, one node after the other."""
    places = await cluster.place_learner()
    found = []
    for node in range(placed.learner_nodes):
        ranks = range(node * placed.ranks_per_node, (node + 1) * placed.ranks_per_node)
        started = [rank_process.start(cluster, placed, Placed, f"learner-{rank}", places[rank]) for rank in ranks]
        found.append(Group(f"ranks {ranks[0]} to {ranks[-1]}", await look(started)))
    return places, found


async def of_engines(cluster: RayCluster, placed: Placement) -> tuple[list[ReservedPlace], list[Group]]:
    """Reserve all engines at once, as a run does, and start one after the other."""
    waits = (cluster.place_engine(cluster.config.actors.start_deadline_s, BY_NODES) for _ in range(placed.engines))
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
    table = Table("host", "address", "processes", "GPUs", "environment", title="8 + 20 nodes")
    for group in groups:
        first = group.seen[0]
        kept = [f"{key}={value}" for key, value in sorted(first.environment.items()) if key.startswith(SHOWN)]
        gpus = " ".join(",".join(seen.gpus) for seen in group.seen)
        table.add_row(first.host, first.address, group.name, gpus, " ".join(kept))
    console = Console(width=160)
    console.print(table)
    made = Table("engine", "", title="by vLLM's own code, in its place")
    for key, value in engine.items():
        made.add_row(key, str(value))
    console.print(made)
    parts = Table("where", "what", "", title="memory and disk")
    for row in plan.rows():
        parts.add_row(*row)
    console.print(parts)


async def place_all(cluster: RayCluster) -> dict[str, Any]:
    """Everything that the test looks at, as JSON."""
    placed = plan(cluster.config)
    learner, ranks = await of_ranks(cluster, placed)
    places, engines = await of_engines(cluster, placed)
    engine = await engine_made(cluster, placed, places[0])
    free = ray.available_resources().get("GPU", 0.0)
    for place in (learner[0], *places):
        cluster.give_up(place)
    found = memory.memory_plan(cluster.config)
    show([*ranks, *engines], engine, found)
    return {
        "hardware": cluster.hardware,
        "device": cluster.config.learner.device,
        "gpus_per_node": cluster.config.cluster.gpus_per_node,
        "ranks": [asdict(group) for group in ranks],
        "engines": [asdict(group) for group in engines],
        "engine": engine,
        "free_gpus": free,
        "memory": {place.name: place.fits for place in found.places},
    }


def main(address: str, model: Path, file: Path) -> None:
    not_a_cpu_build = patch.object(hardware, "version", lambda name: "2.13.0")
    with not_a_cpu_build, RayCluster(recipe(address, model), "whole", outlives_launcher=False) as cluster:
        found = asyncio.run(place_all(cluster))
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
