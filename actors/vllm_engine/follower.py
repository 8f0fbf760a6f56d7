"""The part of an engine on a node without its actor: vLLM's workers there. Their scheduler is on the actor's node."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import wait
from typing import Any

from olmorl.actors.vllm_engine import compat
from olmorl.actors.vllm_engine.start import EngineStart, start_processes
from olmorl.errors import EngineDied


class VllmFollower:
    """The workers of one node live as long as `run`. Except for its node, `start` is that of the actor's engine."""

    def __init__(self, start: EngineStart) -> None:
        self._start = start

    async def run(self) -> None:
        """Work until the end of a worker.

        Raises:
            ModelError, ConfigError, StartError: as `VllmEngine.start` does.
            EngineDied: a worker ended.
        """
        start, executor = self._start, None
        start.check_core()
        try:
            executor = await asyncio.to_thread(self._construct)
            workers = [worker.proc for worker in executor.workers]
            start.own(worker.pid for worker in workers)
            await asyncio.to_thread(wait, [worker.sentinel for worker in workers])
            ends = [f"{worker.name} with exit code {worker.exitcode}" for worker in workers if not worker.is_alive()]
            assert start.node is not None
            raise EngineDied(f"node {start.node.number} of the engine of {start.model.path}: {', '.join(ends)} ended")
        finally:
            await asyncio.to_thread(start.processes.end)
            if executor is not None:
                await asyncio.to_thread(executor.shutdown)

    def _construct(self) -> Any:
        """vLLM's executor, when the workers of all nodes have loaded the model."""
        executor, _ = start_processes(compat.follower_executor, self._start)
        return executor
