"""The process of one learner rank."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

from olmorl.actors.vllm_engine import reaper
from olmorl.actors.vllm_engine.processes import check_core
from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import PASSIVE_THREADS, Placement
from olmorl.deploy.cluster.ray_cluster import RayCluster, ReservedPlace
from olmorl.deploy.cluster.remote_process import RayBatchSource, RemoteProcess
from olmorl.deploy.processes.run_process import RunProcess, Tree
from olmorl.learner.trainer.pinned_memory import ALLOCATOR_SETTINGS

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Names of the variable with torch's settings for memory. If the launcher has one, nothing is set here."""
_ANSWER_S = 60.0
"""Time for the orchestrator to answer once it can."""
_PULSE_S = 1.0
"""Pause between two signs of life of a rank."""


class RankProcess(RunProcess):
    """One rank of the learner."""

    def __init__(self, tree: Tree, rank: int, core: int | None) -> None:
        super().__init__(tree, f"learner-{rank}")
        self._rank = rank
        self._core = core

    def meeting_point(self) -> str:
        """A free `host:port` of rank 0, where the ranks meet."""
        return meeting_point(self.settings)

    def run(self, meeting_point: str, orchestrator: Any, incarnation: int) -> str:
        """Train until the orchestrator (`orchestrator` is its Ray handle) says stop; returns why."""
        take_core(self._core)
        # An answer may wait for a batch, or for room on the disk.
        longest_s = max(self.settings.learner.batch_deadline_s, self.settings.supervision.deadlines.checkpoint_s)
        source = RayBatchSource(orchestrator, incarnation, longest_s + _ANSWER_S, self.telemetry.record)
        over = threading.Event()
        # In a thread, because model code may block the event loop for minutes.
        pulse = threading.Thread(target=self._pulse, args=(orchestrator, incarnation, over), daemon=True)
        pulse.start()
        try:
            return asyncio.run(wiring.learn(self.settings, self._rank, meeting_point, source)).reason
        finally:
            over.set()
            reaper.unlink_own_semaphores()

    def _pulse(self, orchestrator: Any, incarnation: int, over: threading.Event) -> None:
        while not over.wait(_PULSE_S):
            orchestrator.pulse.remote(incarnation, self.name)
            reaper.unlink_own_semaphores()  # a killed process cannot do it at its end


def meeting_point(settings: Config) -> str:
    """A free `host:port` of this host."""
    host = wiring.own_address(settings)
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def take_core(core: int | None) -> None:
    """Keep this process on its core, if it has one. Raises ConfigError for a missing core."""
    if core is not None:
        check_core(core)
        os.sched_setaffinity(0, {core})


def start(
    cluster: RayCluster, placement: Placement, kind: type, name: str, place: ReservedPlace, *args: Any
) -> RemoteProcess:
    """Start a process of `kind` with the GPU and the environment of a rank: `RankProcess`, or a check."""
    environment = _environment(cluster.config, placement)
    return cluster.start(kind, name, place, *args, gpus=placement.gpus_of_rank, env=environment)


def _environment(settings: Config, placement: Placement) -> dict[str, str]:
    """The environment variables, which must be set before the rank imports torch."""
    threads = str(settings.learner.threads)
    accelerator = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", **PASSIVE_THREADS}
    if placement.on_gpu:
        accelerator = {} if any(map(os.environ.get, ALLOCATOR)) else {ALLOCATOR[0]: ALLOCATOR_SETTINGS}
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", **accelerator}
