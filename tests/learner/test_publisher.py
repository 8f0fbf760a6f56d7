"""Publishing in the background: in order, looked after, and never a silent failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from olmorl.clock import LoopClock, run_simulated
from olmorl.errors import DeadlinePassed, WeightError
from olmorl.learner.background import unless_failed
from olmorl.learner.publisher import TEND_S, Publisher
from olmorl.messages import Probe, Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.memory_store import MemoryWeightStore

WEIGHTS = [NamedBuffer("w", "uint8", (3,), memoryview(b"abc"))]


class Source:
    """Hears what is published."""

    def __init__(self) -> None:
        self.versions: list[Version] = []

    async def published(self, version: Version, seconds: float) -> None:
        self.versions.append(version)


class Store(MemoryWeightStore):
    """Notes what it is asked; `broken` methods fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.kept: list[list[int]] = []

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if "publish" in self.broken:
            raise WeightError("no room")
        super().publish(version, buffers, probe, rank, ranks)

    def discard(self, keep: Iterable[Version]) -> None:
        keep = list(keep)
        self.kept.append([version.number for version in keep])
        if "discard" in self.broken:
            raise WeightError("the board is lost")
        if "hang" in self.broken:
            raise DeadlinePassed("the weight store has not answered")
        super().discard(keep)


def publisher() -> tuple[Publisher, Store, Source]:
    store, source = Store(), Source()
    return Publisher(store, source, LoopClock()), store, source  # type: ignore[arg-type]


def test_versions_come_out_in_order_and_the_last_two_stay() -> None:
    async def scenario() -> None:
        publishing, store, source = publisher()
        async with publishing:
            for number in range(4):
                await publishing.publish(Version(1, number), WEIGHTS)
        assert [version.number for version in source.versions] == [0, 1, 2, 3]
        assert store.kept == [[0], [0, 1], [1, 2], [2, 3]]

    run_simulated(scenario())


def test_what_is_published_is_looked_after_while_nothing_else_happens() -> None:
    async def scenario() -> None:
        publishing, store, _ = publisher()
        async with publishing:
            await asyncio.sleep(2 * TEND_S)
            assert store.kept == [], "nothing is published yet"
            await publishing.publish(Version(1, 0), WEIGHTS)
            await asyncio.sleep(3.5 * TEND_S)
            assert store.kept == [[0]] * 4
            store.broken = {"discard"}
            await asyncio.sleep(2 * TEND_S)
            await publishing.publish(Version(1, 1), WEIGHTS)
            await asyncio.sleep(0.5 * TEND_S)
            store.broken = set()
            await publishing.publish(Version(1, 2), WEIGHTS)
        assert store.kept == [[0]] * 6 + [[0, 1]] * 2 + [[1, 2]]
        assert len(asyncio.all_tasks()) == 1

    run_simulated(scenario())


def test_a_publish_that_fails_ends_the_wait_for_the_next_batch() -> None:
    async def scenario() -> None:
        publishing, store, _ = publisher()
        store.broken = {"publish"}
        async with publishing:
            await publishing.publish(Version(1, 0), WEIGHTS)
            with pytest.raises(WeightError, match="no room"):
                await unless_failed(asyncio.sleep(1e6), publishing)
            raise RuntimeError("the learner ends")

    with pytest.raises(RuntimeError, match="the learner ends"):
        run_simulated(scenario())


def test_a_store_that_hangs_while_it_is_looked_after_is_named_by_the_next_publish() -> None:
    async def scenario() -> None:
        publishing, store, _ = publisher()
        async with publishing:
            await publishing.publish(Version(1, 0), WEIGHTS)
            await asyncio.sleep(0.5 * TEND_S)
            store.broken = {"hang"}
            await asyncio.sleep(TEND_S)
            await publishing.publish(Version(1, 1), WEIGHTS)

    with pytest.raises(DeadlinePassed, match="has not answered"):
        run_simulated(scenario())


def shards(rank: int, ranks: int) -> list[NamedBuffer]:
    """One byte of each rank."""
    return [NamedBuffer("w", "uint8", (ranks,), memoryview(bytes([rank])), rank, ranks - rank - 1)]


def test_rank_0_tells_of_a_version_when_the_shards_of_all_ranks_are_there() -> None:
    async def scenario() -> None:
        store, source, clock = Store(), Source(), LoopClock()
        first, second, third = (Publisher(store, source, clock, rank, 3) for rank in range(3))  # type: ignore[arg-type]
        async with first, second, third:
            for number in (0, 1):
                version = Version(1, number)
                await third.publish(version, shards(2, 3))
                await first.publish(version, shards(0, 3))
                await asyncio.sleep(30)
                assert store.latest() == (Version(1, 0) if number else None), "the version before stays"
                assert len(source.versions) == number
                await second.publish(version, shards(1, 3))
                await first.finish()
                assert store.latest() == version == source.versions[-1]
        assert source.versions == [Version(1, 0), Version(1, 1)]
        assert store.fetch(Version(1, 1)).manifest.num_bytes == 3

    run_simulated(scenario())


def test_a_shard_that_never_comes_is_named() -> None:
    async def scenario() -> None:
        store = Store()
        first, second = (Publisher(store, Source(), LoopClock(), rank, 4) for rank in (0, 2))  # type: ignore[arg-type]
        async with second, first:
            await second.publish(Version(1, 0), shards(2, 4))
            await first.publish(Version(1, 0), shards(0, 4))

    with pytest.raises(
        DeadlinePassed, match=r"1800 s for the shards of version 1\.0: none from learner ranks \[1, 3\]"
    ):
        run_simulated(scenario())
