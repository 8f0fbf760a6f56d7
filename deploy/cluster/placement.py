"""The placement of a recipe: how many processes on how many nodes, worked out without a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from olmorl.config import Config
from olmorl.errors import ResourceError
from olmorl.learner.algorithm.presets import staleness_warning

GPUS_OF_A_NODE = 8
SHARE = 0.5
"""Part of a GPU that a rank or an engine gets from Ray if they share it. Ray only counts: both may use all of it."""
PASSIVE_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""For processes on the CPU: threads that wait for others sleep, and do not take their cores."""


@dataclass(frozen=True)
class Placement:
    """Nodes, processes, cores and the in-flight budget that follow from a recipe. No cluster is asked."""

    on_gpu: bool
    learner_nodes: int
    ranks_per_node: int
    actor_nodes: int
    engines_per_node: int
    nodes_per_engine: int
    """With more than 1 an engine has its nodes to itself."""
    gpus_per_engine: int
    """On all its nodes."""
    gpus_per_node: int
    shares_gpu: bool
    """Whether the learner and the engine share the only GPU of this machine."""
    groups_in_flight: int
    """Live draws at most: the in-flight budget."""
    engine_cores: tuple[int | None, ...]
    """CPU core of each engine; None leaves it to the system."""
    rank_cores: tuple[int | None, ...]

    @property
    def ranks(self) -> int:
        return self.learner_nodes * self.ranks_per_node

    @property
    def engines(self) -> int:
        return self.actor_nodes // self.nodes_per_engine * self.engines_per_node

    @property
    def engine_gpus_of_a_node(self) -> int:
        """GPUs that an engine has on each of its nodes."""
        return self.gpus_per_engine // self.nodes_per_engine

    @property
    def devices(self) -> int:
        """GPUs or CPU cores of all ranks and engines."""
        return self.ranks + self.engines * self.gpus_per_engine - self.shares_gpu

    @property
    def gpus_of_rank(self) -> float:
        """What Ray gives a rank."""
        return (SHARE if self.shares_gpu else 1.0) * self.on_gpu

    @property
    def gpus_of_engine(self) -> float:
        """What Ray gives an engine on each of its nodes."""
        return (SHARE if self.shares_gpu else self.engine_gpus_of_a_node) * self.on_gpu

    @property
    def several_hosts(self) -> bool:
        """Whether the run needs more than one machine."""
        return self.learner_nodes > 1 or self.actor_nodes > 1

    def check_one_machine(self) -> None:
        """Raises ResourceError for a plan of several nodes: without a cluster there is one."""
        if self.several_hosts:
            raise ResourceError(
                f"the plan asks for {self.learner_nodes} learner node(s) and {self.actor_nodes} actor node(s), and "
                "this machine is one node: start Ray on the others and join it with --ray-address HOST:PORT, or ask "
                "for --learner-nodes 1 --actor-nodes 1"
            )

    def learner_bundle(self) -> dict[str, float]:
        """Ray resources of one learner node."""
        gpus = {"GPU": self.ranks_per_node * self.gpus_of_rank} if self.on_gpu else {}
        return {"CPU": float(self.ranks_per_node), **gpus}

    def engine_bundle(self) -> dict[str, float]:
        """Ray resources of one engine on each of its nodes."""
        gpus = {"GPU": self.gpus_of_engine} if self.on_gpu else {}
        return {"CPU": 1.0, **gpus}

    def engine_environment(self) -> dict[str, str]:
        """Environment variables of an engine's processes. They must be set before vLLM is imported."""
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **PASSIVE_THREADS} if not self.on_gpu else {}
        return {"TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", **threads}

    def crowding(self, config: Config) -> str:
        """A warning if engines and ranks of one machine share cores; empty when each has its own."""
        cores = [core for core in (*self.engine_cores, *self.rank_cores) if core is not None]
        one_machine = config.run.mode == "real" and config.cluster.address is None
        if not one_machine or len(cores) == len(set(cores)):
            return ""
        return (
            f"{len(cores)} engines and ranks share {len(set(cores))} core(s), and each waits for the others: lower "
            "actors.engines_per_node or learner.ranks_per_node, or take a machine with more cores"
        )

    def rows(self, config: Config) -> list[tuple[str, str]]:
        """The plan as `(what, value)` for people."""
        unit = "GPU" if self.on_gpu else "CPU core"
        devices = self.gpus_per_engine if self.on_gpu else self.nodes_per_engine
        engines = f"{self.actor_nodes} node(s) x {self.engines_per_node} engine(s)"
        if self.nodes_per_engine > 1:
            engines = f"{self.actor_nodes} node(s), {self.engines} engine(s) of {self.nodes_per_engine} nodes"
        sequences = self.groups_in_flight * config.sampling.group_size
        slots = self.engines * config.actors.max_running
        answers = f"completion {config.sampling.max_tokens}"
        if config.episodes.player is not None:
            answers += f", episode {config.longest_answer}"
        return [
            (
                "learner",
                f"{self.learner_nodes} node(s) x {self.ranks_per_node} rank(s), one {unit} each, "
                f"ZeRO-{config.learner.zero_stage}"
                + (f", {config.learner.sequence_parallel} ranks a row" if config.learner.sequence_parallel > 1 else ""),
            ),
            ("actors", f"{engines}, {devices} {unit}(s) each"),
            (
                "in all",
                f"{self.ranks} learner rank(s), {self.engines} engine(s), "
                + ("1 GPU that they share" if self.shares_gpu else f"{self.devices} {unit}s"),
            ),
            (
                "batch",
                f"{config.schedule.prompts_per_step} prompts x {config.sampling.group_size} completions, "
                f"{config.learner.minibatches} minibatch(es)",
            ),
            (
                "in-flight budget",
                f"{self.groups_in_flight} groups = {sequences} sequences, "
                f"for {slots} engine slots; {config.schedule.batches_ahead} batch(es) ahead, "
                f"lag at most {config.schedule.max_lag}",
            ),
            (
                "lengths",
                f"prompt {config.data.max_prompt_tokens}, {answers}; engines take "
                f"{config.max_model_len} tokens, rows {config.row_tokens}",
            ),
            (
                "cores",
                "left to the system"
                if self.on_gpu
                else f"engines {_cores(self.engine_cores)}, learner {_cores(self.rank_cores)}",
            ),
            *((key.removeprefix("verifiers."), self._served(config, key)) for key in config.served),
            *(
                [("stale", warning)]
                if (warning := staleness_warning(config.objective, config.schedule.max_lag))
                else []
            ),
            *([("crowded", crowding)] if (crowding := self.crowding(config)) else []),
        ]

    def _served(self, config: Config, key: str) -> str:
        """The server of the service at `key`, which has a node outside of Ray."""
        service = config.served[key]
        address = "" if service.url else f"; no address yet: a run does not start without {key}.url"
        them = "it" if len(config.served) == 1 else "all services"
        in_all = f", {self.devices + config.served_gpus} GPUs with {them}" if self.on_gpu else ""
        return f"{service.model or 'no model'} on {service.gpus} GPU(s) of a node outside of Ray{in_all}{address}"


def plan(config: Config) -> Placement:
    """Work out the placement of `config`."""
    gpus = config.cluster.gpus_per_node
    on_gpu = config.learner.device != "cpu" and (config.learner.device == "cuda" or bool(gpus))
    per_node = GPUS_OF_A_NODE if gpus is None else gpus
    tensor_parallel, nodes_per_engine = config.actors.tensor_parallel, config.actors.nodes_per_engine
    ranks = config.learner.ranks_per_node
    one_host = config.cluster.address is None and config.learner.nodes == config.actors.nodes == 1
    for_engines = per_node - ranks if one_host else per_node
    fitting = max(1, for_engines // tensor_parallel) if on_gpu and nodes_per_engine == 1 else 1
    engines = config.actors.engines_per_node or fitting
    shares_gpu = on_gpu and one_host and per_node == ranks == engines == tensor_parallel == nodes_per_engine == 1
    num_engines = config.actors.nodes // nodes_per_engine * engines
    engine_cores, rank_cores = (
        ((None,) * num_engines, (None,) * (config.learner.nodes * ranks))
        if on_gpu or config.run.mode == "simulated"
        else _cores_of(config, num_engines, config.learner.nodes * ranks)
    )
    return Placement(
        on_gpu=on_gpu,
        learner_nodes=config.learner.nodes,
        ranks_per_node=ranks,
        actor_nodes=config.actors.nodes,
        engines_per_node=engines,
        nodes_per_engine=nodes_per_engine,
        gpus_per_engine=tensor_parallel,
        gpus_per_node=per_node if on_gpu else 0,
        shares_gpu=shares_gpu,
        groups_in_flight=(config.schedule.batches_ahead + 1) * config.schedule.prompts_per_step,
        engine_cores=engine_cores,
        rank_cores=rank_cores,
    )


def _cores_of(config: Config, engines: int, ranks: int) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """One core for each engine, the others for the ranks: two busy threads on one core stall each other."""
    here = sorted(os.sched_getaffinity(0))
    actors: Sequence[int | None] | None = config.actors.cores
    learner: Sequence[int | None] | None = config.learner.cores
    if config.cluster.address is not None:
        # On other hosts the number of cores is unknown.
        actors, learner = actors or [None], learner or [None]
    else:
        learner = learner or here[min(engines, len(here) - 1) :] or here
        actors = actors or [core for core in here if core not in learner] or here
    return (
        tuple(actors[i % len(actors)] for i in range(engines)),
        tuple(learner[i % len(learner)] for i in range(ranks)),
    )


def _cores(cores: tuple[int | None, ...]) -> str:
    return ", ".join("any" if core is None else str(core) for core in cores)
