"""Decides from the hardware whether a run uses GPUs, and refuses a plan that the hardware cannot hold.

learner.device   cluster.gpus_per_node   decided from
cpu              0 or left out           the recipe
cuda, auto       given                   the recipe; the nodes must have them
cuda, auto       left out                the GPUs of the nodes
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.errors import ConfigError, ResourceError

FEWER = (
    "add nodes, or lower learner.nodes, learner.ranks_per_node, actors.nodes, actors.engines_per_node or "
    'actors.tensor_parallel; learner.device = "cpu" runs without GPUs'
)


def is_open(settings: Config) -> bool:
    """Whether the recipe leaves the device to the hardware."""
    is_real = settings.run.mode == "real"
    return is_real and settings.learner.device == "auto" and settings.cluster.gpus_per_node is None


def on_this_machine(settings: Config) -> Config:
    """The settings with a device, if the run starts its own Ray. Otherwise the device is decided once Ray is joined."""
    here = gpus_here()
    if not is_open(settings) or settings.cluster.address is not None or here is None or plan(settings).several_hosts:
        return settings
    return _with_gpus(settings, here) if here and not is_cpu_build() else _on_cpu(settings)


def decide(settings: Config, gpus: Sequence[int]) -> Config:
    """The settings with the device that a cluster has.

    Args:
        gpus: GPUs of each node, as Ray reports them.

    Raises:
        ResourceError: too few nodes or GPUs. More may join.
        ConfigError: the recipe or this installation does not fit the GPUs.
    """
    device, given = settings.learner.device, settings.cluster.gpus_per_node
    if settings.run.mode == "simulated" or device == "cpu" or (device == "auto" and given == 0):
        return settings
    placed = plan(settings)
    if not any(gpus):
        return _without_gpus(settings, placed, len(gpus))
    if is_cpu_build():
        raise ConfigError(
            f"Ray reports {_nodes(gpus)}, and torch here is a CPU build: install the GPU builds on every host "
            '(make clean install-gpu), or set learner.device = "cpu"'
        )
    found = _of_each_node(gpus, placed.learner_nodes + placed.actor_nodes) if given is None else given
    settings = _with_gpus(settings, found)
    check_gpus_of_a_node(settings)
    _refuse_misfit(plan(settings), gpus)
    return settings


def _without_gpus(settings: Config, placed: Placement, nodes: int) -> Config:
    if not is_open(settings):
        raise ResourceError(
            f"{asked_for(settings)}, and Ray reports no GPU on its {nodes} node(s): leave it out to run on the CPU, "
            "add nodes with GPUs, or give `ray start` the option --num-gpus on nodes whose GPUs it does not see"
        )
    if placed.several_hosts and nodes <= placed.learner_nodes:
        raise ResourceError(
            f"the plan asks for {placed.learner_nodes} learner node(s) and {placed.actor_nodes} actor node(s), and Ray "
            f"reports {nodes}: add nodes, or ask for fewer with --learner-nodes and --actor-nodes"
        )
    return _on_cpu(settings)


def _of_each_node(gpus: Sequence[int], nodes: int) -> int:
    """GPUs that each of the `nodes` largest nodes has; nodes without GPUs do not count."""
    sizes = sorted(filter(None, gpus), reverse=True)
    return sizes[min(nodes, len(sizes)) - 1]


def check_gpus_of_a_node(settings: Config) -> None:
    """Raises ConfigError if a node has too few GPUs for its part of the plan."""
    placed = plan(settings)
    if not placed.on_gpu:
        _refuse_what_needs_gpus(settings)
        return
    _refuse_part_of_a_node(placed)
    for key, needed in (
        ("actors.engines_per_node x actors.tensor_parallel", placed.engines_per_node * placed.engine_gpus_of_a_node),
        ("learner.ranks_per_node", placed.ranks_per_node),
    ):
        if needed > placed.gpus_per_node:
            raise ConfigError(
                f"{key} = {needed} is over the GPUs of a node, {placed.gpus_per_node}: lower it, or set "
                "cluster.gpus_per_node to the GPUs of a node"
            )


def _refuse_part_of_a_node(placed: Placement) -> None:
    """Raises ConfigError for an engine that is too large for its nodes, or has several and leaves GPUs of them free."""
    needed, there, nodes = placed.gpus_per_engine, placed.gpus_per_node, placed.nodes_per_engine
    fitting = -(-needed // there)
    several = f"actors.nodes_per_engine = {fitting} and actors.tensor_parallel = {fitting * there}"
    if needed > there * nodes:
        of_nodes = f"a node, {there}" if nodes == 1 else f"{nodes} nodes, {there * nodes}"
        raise ConfigError(
            f"actors.tensor_parallel = {needed} is over the GPUs of {of_nodes}: lower it, set {several}, or set "
            "cluster.gpus_per_node to the GPUs of a node"
        )
    if nodes > 1 and needed < there * nodes:
        raise ConfigError(
            f"actors.nodes_per_engine = {nodes} gives an engine whole nodes with {there * nodes} GPUs, and "
            f"actors.tensor_parallel is {needed}: set {several}"
        )


def _refuse_misfit(placed: Placement, gpus: Sequence[int]) -> None:
    """The learner takes the smallest nodes that hold it, engines take the others. One GPU is shared."""
    if placed.shares_gpu:
        return
    free = sorted(gpus)
    for _ in range(placed.learner_nodes):
        node = next((size for size in free if size >= placed.ranks_per_node), None)
        if node is None:
            break
        free.remove(node)
        if not placed.several_hosts:
            free.append(node - placed.ranks_per_node)
    else:
        of_a_node, several = placed.engine_gpus_of_a_node, placed.nodes_per_engine
        shares = sum(size // of_a_node if several == 1 else size >= of_a_node for size in free)
        if shares // several >= placed.engines:
            return
    raise ResourceError(
        f"the plan asks for {placed.learner_nodes} learner node(s) with {placed.ranks_per_node} GPU(s) each and for "
        f"{placed.engines} engine(s) with {placed.gpus_per_engine} GPU(s) each"
        f"{f' on {placed.nodes_per_engine} nodes' if placed.nodes_per_engine > 1 else ''}"
        f"{' on other nodes' if placed.several_hosts else ''}, and Ray reports {_nodes(gpus)}: {FEWER}"
    )


def describe(settings: Config, gpus: Sequence[int]) -> str:
    """The decision in one line, for people."""
    if settings.run.mode == "simulated":
        return "hardware: a simulated run takes no GPU"
    if plan(settings).on_gpu:
        return f"hardware: GPUs; Ray reports {_nodes(gpus)}"
    if not any(gpus):
        return "hardware: CPU; Ray reports no GPU"
    why = "torch here is a CPU build" if is_cpu_build() else "the recipe asks for none"
    return f"hardware: CPU; Ray reports {_nodes(gpus)}, and {why}"


def asked_for(settings: Config) -> str:
    """The key of a recipe that asks for GPUs, with its value."""
    if settings.learner.device == "cuda":
        return 'learner.device = "cuda"'
    return f"cluster.gpus_per_node = {settings.cluster.gpus_per_node}"


def gpus_here() -> int | None:
    """NVIDIA GPUs that this process may use; None where device files do not show it."""
    if Path("/dev/kfd").exists() or Path("/dev/dxg").exists():
        return None
    there = sum(path.name.removeprefix("nvidia").isdecimal() for path in Path("/dev").glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return min(there, sum(name.strip() not in ("", "-1", "NoDevFiles") for name in visible.split(",")))


def is_cpu_build() -> bool:
    """Whether the torch that is installed here has no GPU code."""
    return version("torch").endswith("+cpu")


def _nodes(gpus: Sequence[int]) -> str:
    """The nodes in words, such as `28 node(s) with 8 GPU(s), 1 node(s) with 0 GPU(s)`."""
    counted = [f"{gpus.count(size)} node(s) with {size} GPU(s)" for size in sorted(set(gpus), reverse=True)]
    return ", ".join(counted)


def _with_gpus(settings: Config, gpus_per_node: int) -> Config:
    cluster = settings.cluster.model_copy(update={"gpus_per_node": gpus_per_node})
    learner = settings.learner.model_copy(update={"device": "cuda"})
    return settings.model_copy(update={"cluster": cluster, "learner": learner})


def _refuse_what_needs_gpus(settings: Config) -> None:
    """Raises ConfigError for what only GPUs can do."""
    placed = plan(settings)
    if placed.engine_gpus_of_a_node > 1:
        raise ConfigError(
            f"actors.tensor_parallel = {placed.gpus_per_engine} splits an engine over GPUs, and this run has none: set "
            f'it to {placed.nodes_per_engine}, or set learner.device = "cuda"'
        )


def _on_cpu(settings: Config) -> Config:
    _refuse_what_needs_gpus(settings)
    return settings.model_copy(update={"learner": settings.learner.model_copy(update={"device": "cpu"})})
