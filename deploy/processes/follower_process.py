"""The other nodes of an engine: a process on each, and what the actor's process knows of them.

the actor's process, node 0              a follower, on each further node
ActorProcess, VllmEngine, vLLM's         FollowerProcess, VllmFollower, vLLM's workers;
scheduler and workers; Followers         stages each version on its host
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError

from olmorl.actors.vllm_engine import reaper
from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.ray_cluster import other_places, start_process
from olmorl.deploy.cluster.remote_process import Identity, RemoteProcess, cause_of
from olmorl.deploy.processes.rank_process import meeting_point
from olmorl.deploy.processes.run_process import RunProcess, Tree
from olmorl.errors import EngineDied, WeightError
from olmorl.messages import Version
from olmorl.ports import EngineNode, StagedWeights, WeightSource

T = TypeVar("T")
NEWS_S = 2.0
"""After an engine died: time for the news that a follower's end was the cause."""
END_S = 5.0
"""Time for the actor to end when a follower has. Then its process ends with all that it has started."""
FETCH_SHARE = 0.8
"""The followers' share of the actor's limit for a fetch, so that the error names the one that is late."""
_CALLS = 4
"""Calls that a follower answers at the same time."""


class FollowerProcess(RunProcess):
    """One further node of an engine. It ends with the actor's process, which starts it."""

    def __init__(self, tree: Tree, name: str, engine: str, core: int | None) -> None:
        super().__init__(tree, name)
        self._engine = engine
        self._core = core
        self._store = wiring.weight_store(self.settings)
        self._staging = asyncio.Lock()
        self._processes = wiring.engine_processes(self.settings)
        loading = partial(wiring.load_engine, self.settings, core, self._processes, has_core=False)
        threading.Thread(target=loading, daemon=True).start()

    async def run(self, node: EngineNode) -> None:
        """Work until a worker of this node ends, which is an error."""
        try:
            await wiring.engine_follower(self.settings, self._core, self._engine, node, self._processes).run()
        finally:
            reaper.unlink_own_semaphores()

    async def fetch(self, version: str) -> str:
        """Stage a version on this host. Returns the signature of its file."""
        async with self._staging:
            staged = await asyncio.to_thread(self._store.fetch, Version.parse(version))
            return file_signature(staged.path)


class Followers:
    """The engine of this process has all its nodes, or ends. Without further nodes this does nothing.

    Args:
        name: of the process; `engine` names the start of its engine, as `wiring.engine` does.
    """

    def __init__(self, settings: Config, name: str, engine: str, core: int | None) -> None:
        placed = plan(settings)
        self._fetch_s = FETCH_SHARE * settings.actors.stall_deadline_s
        self._start_deadline_s = settings.actors.start_deadline_s
        self._processes: list[RemoteProcess] = []
        self.leading_node: EngineNode | None = None
        """The node of this process, of an engine on several."""
        if placed.nodes_per_engine == 1:
            return
        self.leading_node = EngineNode(0, placed.nodes_per_engine, meeting_point(settings))
        tree, gpus = settings.model_dump(mode="json"), placed.gpus_of_engine
        for number, place in enumerate(other_places(), 1):
            own = f"{name}-node-{number}"
            asked = (tree, own, engine, core)
            process = start_process(
                FollowerProcess, own, place, *asked, gpus=gpus, calls=_CALLS, env=placed.engine_environment()
            )
            self._processes.append(process)

    async def identities(self) -> dict[str, Identity]:
        """Where each follower is, by its name."""
        answers = [process.call("identity", timeout_s=self._start_deadline_s) for process in self._processes]
        names = [process.name for process in self._processes]
        return dict(zip(names, await asyncio.gather(*answers), strict=True))

    async def alongside(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the followers work while `work` does, which needs the engine. Afterwards they are ended.

        Raises:
            OlmoRLError: the error with which a follower ended.
        """
        for number, process in enumerate(self._processes, 1):
            assert self.leading_node is not None
            process.begin("run", self.leading_node._replace(number=number))
        working = asyncio.ensure_future(work)
        ends = [asyncio.ensure_future(process.ended()) for process in self._processes]
        try:
            await asyncio.wait([working, *ends], return_when=asyncio.FIRST_COMPLETED)
            if ends and working.done() and isinstance(working.exception(), EngineDied):
                await asyncio.wait(ends, timeout=NEWS_S, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() or working.exception() is not None:
                for end in ends:
                    if end.done():
                        end.result()  # raises: a follower has no other end
            return await working
        finally:
            for task in (working, *ends):
                task.cancel()
            await asyncio.wait([working], timeout=END_S)
            for process in self._processes:
                process.kill()

    def fetch(self, version: Version) -> Callable[[], tuple[str, ...]]:
        """Ask all followers to stage a version. Returns a function that waits for the signatures of their files.

        It raises WeightError if a follower does not have the version in time.
        """
        give_up_at = time.monotonic() + self._fetch_s
        answers = [process.handle.fetch.remote(str(version)) for process in self._processes]

        def signatures() -> tuple[str, ...]:
            return tuple(
                self._signature(process, answer, give_up_at)
                for process, answer in zip(self._processes, answers, strict=True)
            )

        return signatures

    def _signature(self, process: RemoteProcess, answer: Any, give_up_at: float) -> str:
        try:
            return str(ray.get(answer, timeout=max(0.0, give_up_at - time.monotonic())))
        except GetTimeoutError:
            limit = f"{self._fetch_s:g} s (actors.stall_deadline_s)"
            raise WeightError(f"{process.name} has not staged the version within {limit}") from None
        except RayError as error:
            cause = cause_of(error, process.name)
            raise cause if isinstance(cause, WeightError) else WeightError(str(cause)) from None


class StagedOnAllNodes:
    """A version is staged on all nodes of the engine, or refused. Implements `WeightSource`."""

    def __init__(self, store: WeightSource, followers: Followers) -> None:
        self._store = store
        self._followers = followers

    def latest(self) -> Version | None:
        return self._store.latest()

    def fetch(self, version: Version) -> StagedWeights:
        signatures = self._followers.fetch(version)
        staged = self._store.fetch(version)
        return staged._replace(on_followers=signatures())
