"""An engine on two nodes of a real Ray: all its processes live together, and stage a version together. No model."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.ray_cluster import BY_NODES, RayCluster
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.processes import actor_process
from olmorl.deploy.processes.follower_process import Followers, StagedOnAllNodes
from olmorl.errors import EngineDied, ProcessLost, WeightError
from olmorl.messages import Version
from olmorl.ports import NamedBuffer

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
ANSWER_S = 120.0
ENDED_S = 30.0
FOLLOWER = "engine-node-1"
FIRST, LOST = Version(1, 1), Version(1, 2)


class LeadingProcess:
    """An engine with its followers, in the place of an actor. The engine lives until it is told to break."""

    def __init__(self, tree: dict[str, Any]) -> None:
        settings = config.build(tree)
        self._followers = Followers(settings, "engine", "", None)
        self._source = StagedOnAllNodes(wiring.weight_store(settings), self._followers)
        self._broken = asyncio.Event()

    async def run(self) -> str:
        return await self._followers.alongside(self._live())

    async def _live(self) -> str:
        await self._broken.wait()
        raise EngineDied("the other side of a connection is gone")

    async def fetch(self, version: str) -> tuple[str, ...]:
        """The signatures of the file on the followers."""
        return (await asyncio.to_thread(self._source.fetch, Version.parse(version))).on_followers

    async def pids(self) -> list[int]:
        """Of this process, then of its followers."""
        return [os.getpid(), *(identity.pid for identity in (await self._followers.identities()).values())]

    async def break_down(self) -> None:
        self._broken.set()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head without CPUs, a node for the learner and two for the engine, all on this machine."""
    folder = tempfile.mkdtemp(prefix="o", dir="/tmp")
    common = {"object_store_memory": 80 << 20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_TMPDIR", folder)
        patched.setenv("RAY_raylet_start_wait_time_s", "200")
        patched.setenv("RAY_memory_monitor_refresh_ms", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
        try:
            for _ in range(3):
                cluster.add_node(wait=False, num_cpus=1, **common)
            cluster.wait_for_nodes(timeout=ANSWER_S)
            yield cluster.address
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def settings(address: str, tmp_path: Path) -> Iterator[config.Config]:
    made = config.build(
        {
            "run": {"name": tmp_path.name, "directory": str(tmp_path), "mode": "simulated"},
            "cluster": {"address": address},
            "actors": {"nodes": 2, "nodes_per_engine": 2, "tensor_parallel": 2},
            "weights": {"store": "file"},
        }
    )
    yield made
    wiring.sweep(made)  # what the followers have staged


async def lead(cluster: RayCluster) -> RemoteProcess:
    """The process of an engine, once its follower answers."""
    settings = cluster.config
    await cluster.place_learner()
    place = await cluster.place_engine(ANSWER_S, BY_NODES)
    tree = settings.model_dump(mode="json")
    process = actor_process.start(cluster, plan(settings), LeadingProcess, "engine", place, tree, calls=4)
    process.begin("run")
    raylets = [psutil.Process(each).parent() for each in await pids(process)]
    assert len(set(raylets)) == 2, "the follower is on another node"
    return process


async def pids(process: RemoteProcess) -> list[int]:
    return list(await process.call("pids", timeout_s=ANSWER_S))


@asynccontextmanager
async def leading(cluster: RayCluster) -> AsyncIterator[RemoteProcess]:
    """The same, ended afterwards."""
    try:
        yield await lead(cluster)
    finally:
        cluster.end_all()


def ended_within(seconds: float, pid: int) -> bool:
    """Whether a process ends."""
    give_up = time.monotonic() + seconds
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def publish(settings: config.Config, version: Version) -> None:
    data = memoryview(bytes(8))
    wiring.weight_store(settings).publish(version, [NamedBuffer("a", "float32", (2,), data)])


def test_a_version_is_staged_on_all_nodes_and_the_end_of_one_ends_the_engine(settings: config.Config) -> None:
    async def run(cluster: RayCluster) -> None:
        async with leading(cluster) as process:
            publish(cluster.config, FIRST)
            [signature] = await process.call("fetch", str(FIRST), timeout_s=ANSWER_S)
            assert signature.split()[1] == "8", "its size is part of a signature"
            with pytest.raises(WeightError, match=r"version 1\.2"):
                await process.call("fetch", str(LOST), timeout_s=ANSWER_S)
            os.kill((await pids(process))[1], signal.SIGKILL)
            began_at = time.monotonic()
            with pytest.raises(ProcessLost, match=rf"^{FOLLOWER} died: "):
                await process.ended()
            assert time.monotonic() - began_at < ENDED_S

    with RayCluster(settings, "end", outlives_launcher=False) as cluster:
        asyncio.run(run(cluster))


def test_a_follower_that_hangs_is_named_and_the_engine_lives(settings: config.Config) -> None:
    async def run(cluster: RayCluster) -> None:
        async with leading(cluster) as process:
            publish(cluster.config, FIRST)
            _, follower = await pids(process)
            os.kill(follower, signal.SIGSTOP)
            with pytest.raises(WeightError, match=rf"^{FOLLOWER} has not staged the version within 4 s"):
                await process.call("fetch", str(FIRST), timeout_s=ANSWER_S)
            os.kill(follower, signal.SIGCONT)
            assert await process.call("fetch", str(FIRST), timeout_s=ANSWER_S)

    quick = config.with_key(settings, "actors.stall_deadline_s", 5.0)
    with RayCluster(quick, "hang", outlives_launcher=False) as cluster:
        asyncio.run(run(cluster))


def test_an_engine_that_breaks_with_its_follower_names_the_follower(settings: config.Config) -> None:
    async def run(cluster: RayCluster) -> None:
        async with leading(cluster) as process:
            _, follower = await pids(process)
            await process.call("break_down", timeout_s=ANSWER_S)
            os.kill(follower, signal.SIGKILL)
            with pytest.raises(ProcessLost, match=rf"^{FOLLOWER} died: "):
                await process.ended()

    with RayCluster(settings, "both", outlives_launcher=False) as cluster:
        asyncio.run(run(cluster))


def test_a_follower_outlives_the_launcher_and_not_its_engine(settings: config.Config) -> None:
    async def start(cluster: RayCluster) -> list[int]:
        return await pids(await lead(cluster))

    with RayCluster(settings, "launcher") as cluster:
        pid, follower = asyncio.run(start(cluster))
    with RayCluster(settings, "launcher") as cluster:
        try:
            assert {process.name for process in cluster.processes()} == {"engine", FOLLOWER}
            assert not ended_within(3.0, follower)
            os.kill(pid, signal.SIGKILL)
            assert ended_within(ENDED_S, follower)
        finally:
            cluster.end_all()
