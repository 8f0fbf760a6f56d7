"""Every adapter of a port, behind one face, so that one contract test runs against all."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from olmorl import deadlines
from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.messages import Completion, Group, Prompt, Span, Verdict, Version
from olmorl.ports import Queue, WeightStore
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from olmorl.queues.weights.memory_store import MemoryWeightStore
from olmorl.queues.weights.store import StagedWeightStore, store_in_files, store_in_ray

LEASE_S = 60.0
MAX_ATTEMPTS = 3
TOTAL_DEADLINE_S = 100.0
SETTINGS = QueueSettings(outage_deadline_s=LEASE_S / 1.5)
BOUND = 50


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws fail earlier than in a run."""
    monkeypatch.setattr(deadlines, "MAX_ATTEMPTS", MAX_ATTEMPTS)
    monkeypatch.setattr(deadlines, "TOTAL_DEADLINE_S", TOTAL_DEADLINE_S)


class SteppedClock(SystemClock):
    """Wall time that moves by hand; durations stay real."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def wall(self) -> float:
        return self.time


class QueueRig(Protocol):
    """One run on one adapter."""

    clock: SteppedClock

    async def connect(self, bound: int = BOUND) -> Queue:
        """Another holder of the same run."""
        ...

    async def damage_prompt(self, draw_id: int, payload: bytes = b"damaged") -> None:
        """Replace the stored prompt."""
        ...

    async def damage_result(self, draw_id: int, payload: bytes = b"damaged") -> None:
        """Replace the stored result."""
        ...

    async def damage_heartbeat(self, name: str) -> None:
        """Replace what an actor said last."""
        ...

    async def close(self) -> None: ...


class MemoryRig:
    def __init__(self) -> None:
        self.clock = SteppedClock()
        self._queue: MemoryQueue | None = None

    async def connect(self, bound: int = BOUND) -> Queue:
        if self._queue is None:
            self._queue = MemoryQueue(SETTINGS, bound, self.clock)
            return self._queue
        return self._queue.another()

    async def damage_prompt(self, draw_id: int, payload: bytes = b"damaged") -> None:
        assert self._queue
        self._queue._run.lanes["train"].prompts[draw_id].payload = payload

    async def damage_result(self, draw_id: int, payload: bytes = b"damaged") -> None:
        assert self._queue
        results = self._queue._run.lanes["train"].results
        for entry, stored in results.items():
            if stored.draw_id == draw_id:
                results[entry] = stored._replace(result=payload)

    async def damage_heartbeat(self, name: str) -> None:
        assert self._queue
        self._queue._run.statuses[name] = b"damaged"

    async def close(self) -> None: ...


class RedisRig:
    def __init__(self, server: EmbeddedRedis) -> None:
        self.clock = SteppedClock()
        self._server = server
        self._run = uuid.uuid4().hex
        self._queues: list[RedisQueue] = []

    async def connect(self, bound: int = BOUND) -> Queue:
        queue = await RedisQueue.connect(
            self._server.url, self._run, SETTINGS, bound, self.clock, self._server.environment
        )
        self._queues.append(queue)
        return queue

    async def damage_prompt(self, draw_id: int, payload: bytes = b"damaged") -> None:
        await self._command("HSET", f"olmorl:{{{self._run}}}:train:prompts", draw_id, payload)

    async def damage_heartbeat(self, name: str) -> None:
        await self._command("HSET", f"olmorl:{{{self._run}}}:statuses", name, b"damaged")

    async def damage_result(self, draw_id: int, payload: bytes = b"damaged") -> None:
        key = f"olmorl:{{{self._run}}}:train:results"
        for entry, fields in await self._command("XRANGE", key, "-", "+"):
            if int(fields[fields.index(b"draw") + 1]) == draw_id:
                await self._command("XDEL", key, entry)
                await self._command("XADD", key, "*", "draw", draw_id, "attempt", 1, "result", payload)

    async def _command(self, *parts: object) -> list[tuple[bytes, list[bytes]]]:
        found: list[tuple[bytes, list[bytes]]] = await self._queues[0]._link.command("a test", *parts)
        return found

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis"), fsync="no") as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.cluster)])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[QueueRig]:
    rig = MemoryRig() if request.param == "memory" else RedisRig(request.getfixturevalue("server"))
    yield rig
    await rig.close()


@pytest.fixture
async def queue(rig: QueueRig) -> Queue:
    """The orchestrator's holder, with a claim; also used as the actors'."""
    queue = await rig.connect()
    await queue.claim(1)
    return queue


@pytest.fixture
def make_prompt() -> Callable[..., Prompt]:
    return _prompt


@pytest.fixture
def make_group() -> Callable[[Prompt], Group]:
    return _group


def _prompt(draw_id: int, lane: str = "train", attempt: int = 1) -> Prompt:
    return Prompt(
        draw_id=draw_id,
        lane=lane,
        attempt=attempt,
        row=f"problems.jsonl:{draw_id}",
        messages=[{"role": "user", "content": f"{draw_id} + 1 = ?"}],
        token_ids=np.arange(draw_id, draw_id + 5, dtype=np.int32),
        datasets=("math",),
        ground_truths=(str(draw_id + 1),),
        columns={"level": 3},
        group_size=2,
        min_version=Version(1, 0),
    )


def _group(prompt: Prompt) -> Group:
    completion = Completion(
        index=0,
        token_ids=np.array([prompt.draw_id, 7, 2], dtype=np.int32),
        logprobs=np.array([-0.5, -0.25, -1.0], dtype=np.float32),
        spans=(Span(Version(1, 0), 0, 2), Span(Version(1, 1), 2, 3)),
        finish_reason="stop",
        text="7",
        verdicts={"math": Verdict(reward=1.0, extracted="7")},
        reward=1.0,
    )
    return Group(prompt=prompt, completions=(completion,), actor="actor-0", started_at=1.0, finished_at=2.0)


class WeightRig(Protocol):
    """One run on one adapter that holds the bytes, in chunks of 1,000."""

    def connect(self) -> WeightStore:
        """The store of one more process of the run."""
        ...

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None:
        """Change one byte of a published version."""
        ...


class FileRig:
    def __init__(self, folder: Path, mounted: bool, full_every: int) -> None:
        self._directory = folder / "mounted" if mounted else None
        self._memory = folder / "memory"
        self._full_every = full_every

    def connect(self) -> WeightStore:
        return store_in_files("r", self._directory, 1000, self._memory, self._full_every)

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None:
        kind = "shard_0" if self._directory else "weights"
        path = (self._directory or self._memory) / "olmorl-r" / f"{version}.{kind}"
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        path.write_bytes(damaged)


class RayRig:
    def __init__(self, folder: Path, stores: list[StagedWeightStore], full_every: int) -> None:
        self._memory = folder / "memory"
        self._stores = stores
        self._full_every = full_every

    def connect(self) -> WeightStore:
        store = store_in_ray("contract", 1000, self._memory, self._full_every)
        self._stores.append(store)
        return store

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None:
        import ray

        assert isinstance(publisher, StagedWeightStore)
        published: Any = publisher._published
        number, offset = divmod(place, 1000)
        chunks = published._mine[version].chunks
        damaged = ray.get(chunks[number]).copy()
        damaged[offset] ^= 1
        chunks[number] = ray.put(damaged)
        published._show()


@pytest.fixture(scope="module")
def first_stores(ray_here: None) -> list[StagedWeightStore]:
    """One board for all tests, because a board takes a second to start."""
    return []


@pytest.fixture
def stores_in_ray(first_stores: list[StagedWeightStore]) -> Iterator[list[StagedWeightStore]]:
    """The stores of one test; what they published is gone after it."""
    stores: list[StagedWeightStore] = []
    yield stores
    for store in stores:
        store.sweep()
    first_stores.extend(stores)


FULL_EVERY = 4
"""Where versions are published as deltas."""


def _weight_rig(kind: str, request: pytest.FixtureRequest) -> WeightRig:
    folder: Path = request.getfixturevalue("tmp_path")
    kind, _, deltas = kind.partition(" ")
    full_every = FULL_EVERY if deltas else 1
    if kind == "ray":
        return RayRig(folder, request.getfixturevalue("stores_in_ray"), full_every)
    return FileRig(folder, kind == "mounted", full_every)


RAY = pytest.param("ray", marks=pytest.mark.cluster)
RAY_DELTAS = pytest.param("ray deltas", marks=pytest.mark.cluster)


@pytest.fixture(params=["memory", "file", "mounted", "mounted deltas", RAY, RAY_DELTAS])
def connect_store(request: pytest.FixtureRequest) -> Callable[[], WeightStore]:
    """Gives stores of one run: of its publisher, and of its readers."""
    if request.param == "memory":
        store = MemoryWeightStore()
        return lambda: store
    return _weight_rig(request.param, request).connect


@pytest.fixture(params=["file", "mounted", "mounted deltas", RAY, RAY_DELTAS])
def weight_rig(request: pytest.FixtureRequest) -> WeightRig:
    """Only of stores that hold the bytes."""
    return _weight_rig(request.param, request)


@pytest.fixture(params=["mounted deltas", RAY_DELTAS])
def delta_rig(request: pytest.FixtureRequest) -> WeightRig:
    """Only of stores that publish every fourth version whole, and deltas between."""
    return _weight_rig(request.param, request)
