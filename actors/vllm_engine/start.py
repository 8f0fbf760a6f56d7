"""Starts vLLM's processes on one node: its environment, its arguments, and the cause when they do not start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from olmorl import config
from olmorl.actors.vllm_engine.arguments import engine_arguments, engine_config
from olmorl.actors.vllm_engine.processes import EngineProcesses, check_core
from olmorl.actors.vllm_engine.root_cause import ErrorOutput, root_cause
from olmorl.actors.vllm_engine.weight_check import Shapes, checkpoint_shapes, model_folder
from olmorl.errors import EngineDied, ModelError, StartError
from olmorl.failed_start import describe, would_repeat
from olmorl.network import Way, way_to
from olmorl.ports import EngineNode

T = TypeVar("T")
_LOADING = threading.Lock()
"""Held while vLLM is imported or started: both set environment variables."""


@dataclass(frozen=True)
class EngineStart:
    """All that an engine needs to start on one of its nodes.

    Args:
        max_model_len: tokens of a prompt and its answer.
        core: CPU core for the node's one worker; None on GPUs, or to let vLLM take all cores.
        node: this node, of an engine on several.
    """

    model: config.Model
    actors: config.Actors
    max_model_len: int
    seed: int
    core: int | None
    processes: EngineProcesses
    node: EngineNode | None = None

    def check_core(self) -> None:
        """Raises ConfigError if the host has no such core."""
        if self.core is not None:
            check_core(self.core)

    def own(self, pids: Iterable[int]) -> None:
        """Note the processes that have started, and keep them on their core."""
        self.processes.adopt(pids)
        if self.core is not None:
            self.processes.pin(self.core)


def start_processes(make: Callable[[Any], T], start: EngineStart) -> tuple[T, Shapes]:
    """What `make` starts from vLLM's configuration, and the shapes of the model. Blocks, so it runs in a thread.

    Raises:
        ModelError: vLLM cannot use the model.
        StartError: another start would fail too.
        EngineDied: the processes ended while they started.
    """
    output, model, actors = ErrorOutput(), start.model, start.actors
    with _LOADING, start.processes.starting(_variables(start.core, actors.start_deadline_s, start.node)):
        try:
            made = engine_config(engine_arguments(model, actors, start.max_model_len, start.seed, start.node))
            shapes = checkpoint_shapes(model_folder(model.path))
        except (OSError, ValueError) as error:
            settings = f" with actors.vllm = {actors.vllm}" if actors.vllm else ""
            raise ModelError(f"{model.path}: vLLM cannot use this model{settings}: {error}") from error
        try:
            with start.processes.early_core():
                return make(made), shapes
        except Exception as error:
            cause = root_cause(output.read()) or describe(error)
            text = f"the engine of {model.path} did not start: {cause}"
            raise StartError(text) if would_repeat(cause) else EngineDied(text) from error


def load_libraries(core: int | None, start_deadline_s: float, processes: EngineProcesses, *, has_core: bool) -> None:
    """Import vLLM, which takes ten seconds, for an engine that is built later with these processes.

    Args:
        has_core: the engine core will be on this node, and its process imports vLLM at the same time.
    """
    modules = ["vllm.v1.engine.core"] if has_core else []
    if has_core and core is not None:
        modules.append("vllm.v1.worker.cpu_worker")  # on a CPU core the worker is a part of the engine core
    with _LOADING:
        processes.load(_variables(core, start_deadline_s, None), modules)


def _variables(core: int | None, ready_timeout_s: float, node: EngineNode | None) -> dict[str, str]:
    # All processes of an engine on one node talk over the loopback interface: no other host may reach them.
    way = Way("lo", "127.0.0.1") if node is None else way_to(node.meeting_point)
    variables = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # where `root_cause` looks
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(ready_timeout_s)),
        "VLLM_HOST_IP": way.own_address,
        "GLOO_SOCKET_IFNAME": way.interface,
        "NCCL_SOCKET_IFNAME": f"={way.interface}",
    }
    if core is not None:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": str(core), "OMP_NUM_THREADS": "1"}
        # On CPU, 0 means no process of its own for the worker. vLLM needs one to set the threads, and here it is one.
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # These take effect when a process starts or imports torch. vLLM sets the same, but after the core has started.
        variables |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}
        if library := _openmp_of_torch():
            variables["LD_PRELOAD"] = library
    return variables


def _openmp_of_torch() -> str | None:
    """The OpenMP library that torch brings along."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    found = [*folder.parent.glob("torch.libs/libgomp*.so*"), *folder.glob("lib/libgomp*.so*")]
    return str(found[0]) if found else None
