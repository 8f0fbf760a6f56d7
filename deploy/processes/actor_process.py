"""The process of one actor and its engine."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import Any

from olmorl import deadlines
from olmorl.actors.vllm_engine import reaper
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import Placement
from olmorl.deploy.cluster.ray_cluster import RayCluster, ReservedPlace
from olmorl.deploy.cluster.remote_process import Identity, RemoteProcess
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.follower_process import Followers, StagedOnAllNodes
from olmorl.deploy.processes.run_process import RunProcess, Tree

log = logging.getLogger(__name__)


class ActorProcess(RunProcess):
    """One engine and its actor. `actor` names this start; `name` names the slot.

    Of an engine on several nodes this is node 0. It starts the others.
    """

    def __init__(self, tree: Tree, name: str, actor: str, core: int | None, access: QueueAccess) -> None:
        super().__init__(tree, name)
        self._actor_name = actor
        self._core = core
        self._access = access
        self._followers = Followers(self.settings, name, actor, core)
        self._processes = wiring.engine_processes(self.settings)
        # vLLM is imported while the orchestrator reads the data. A failed import fails again when the engine starts.
        loading = partial(wiring.load_engine, self.settings, core, self._processes, has_core=True)
        self._loading = threading.Thread(target=loading, daemon=True)
        self._loading.start()

    async def run(self) -> str:
        """Serve until asked to stop."""
        queue = await wiring.join_queue(self.settings, self._access)
        peak = await asyncio.to_thread(wiring.device_peak, self.settings)
        if self.settings.episodes.player is not None:
            # The tokenizer of episodes imports transformers, as vLLM does: two threads at once leave it half imported.
            await asyncio.to_thread(self._loading.join)
        self._actor = wiring.actor(
            self.settings,
            self._actor_name,
            self._core,
            queue,
            self.telemetry.address,
            peak,
            self._followers.leading_node,
            StagedOnAllNodes(wiring.weight_store(self.settings), self._followers),
            self._processes,
        )
        watch = asyncio.create_task(self._publish_metrics())
        try:
            await self._followers.alongside(self._actor.run())
        finally:
            watch.cancel()
            await asyncio.wait([watch])
            self.telemetry.close()
            await queue.close()
            reaper.unlink_own_semaphores()
        return "was asked to leave"

    async def followers(self) -> dict[str, Identity]:
        """Where the other nodes of the engine are, by the names of their logs."""
        return await self._followers.identities()

    async def _publish_metrics(self) -> None:
        while True:
            try:
                self.telemetry.record_actor(self._actor.status())
            except Exception:
                log.exception("the metrics of %s are not current", self.name)
            await asyncio.sleep(deadlines.BETWEEN_HEARTBEATS_S)

    async def drain(self) -> None:
        """Finish the leased prompts and leave."""
        await self._actor.drain()

    async def stop(self) -> None:
        """Give back the leased prompts and leave."""
        await self._actor.stop()


def start(
    cluster: RayCluster, placement: Placement, kind: type, name: str, place: ReservedPlace, *args: Any, calls: int = 1
) -> RemoteProcess:
    """Start a process of `kind` with the GPUs and the environment of an engine: `ActorProcess`, or a check."""
    environment = placement.engine_environment()
    return cluster.start(kind, name, place, *args, gpus=placement.gpus_of_engine, calls=calls, env=environment)
