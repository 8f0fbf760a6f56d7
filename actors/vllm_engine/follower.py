"""The part of an engine on a node without its actor: vLLM's workers there. Their scheduler is on the actor's node."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import wait
from typing import Any

from olmorl import config
from olmorl.actors.vllm_engine.processes import EngineProcesses, check_core
from olmorl.actors.vllm_engine.start import start_processes
from olmorl.errors import EngineDied
from olmorl.ports import EngineNode


class VllmFollower:
    """The workers of one node live as long as `run`. The arguments are those of the actor's `VllmEngine`.

    Args:
        core: CPU core for the node's one worker; None on GPUs, or to let vLLM take all cores.
    """

    def __init__(
        self,
        model: config.Model,
        actors: config.Actors,
        *,
        max_model_len: int,
        seed: int,
        core: int | None,
        processes: EngineProcesses,
        node: EngineNode,
    ) -> None:
        self._model = model
        self._actors = actors
        self._max_model_len = max_model_len
        self._seed = seed
        self._core = core
        self._node = node
        self._processes = processes

    async def run(self) -> None:
        """Work until the end of a worker.

        Raises:
            ModelError, ConfigError, StartError: as `VllmEngine.start` does.
            EngineDied: a worker ended.
        """
        if self._core is not None:
            check_core(self._core)
        executor = None
        try:
            executor = await asyncio.to_thread(self._construct)
            workers = [worker.proc for worker in executor.workers]
            self._processes.adopt(worker.pid for worker in workers)
            if self._core is not None:
                self._processes.pin(self._core)
            await asyncio.to_thread(wait, [worker.sentinel for worker in workers])
            ends = [f"{worker.name} with exit code {worker.exitcode}" for worker in workers if not worker.is_alive()]
            raise EngineDied(f"node {self._node.number} of the engine of {self._model.path}: {', '.join(ends)} ended")
        finally:
            await asyncio.to_thread(self._processes.end)
            if executor is not None:
                await asyncio.to_thread(executor.shutdown)

    def _construct(self) -> Any:
        """vLLM's executor, when the workers of all nodes have loaded the model."""

        def make(vllm_config: Any) -> Any:
            from vllm.v1.executor.multiproc_executor import MultiprocExecutor

            return MultiprocExecutor(vllm_config, monitor_workers=False)

        executor, _ = start_processes(
            make,
            self._model,
            self._actors,
            max_model_len=self._max_model_len,
            seed=self._seed,
            core=self._core,
            node=self._node,
            processes=self._processes,
        )
        return executor
