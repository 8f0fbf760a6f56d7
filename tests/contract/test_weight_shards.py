"""The contract of versions that several learner ranks publish: all shards or none, and the bytes are as of one rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from olmorl.errors import Superseded, WeightError, WeightsDamaged
from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights, WeightStore
from olmorl.queues.weights.chunks import checked
from olmorl.queues.weights.store import StagedWeightStore

ConnectStore = Callable[[], WeightStore]
RANKS = 3
V = [Version(1, number) for number in range(8)]
NEXT = Version(2, 3)
TENSORS = {"weight": ("bfloat16", (150, 20), 6000), "bias": ("uint8", (33,), 33), "empty": ("float32", (0, 3), 0)}


class WeightRig(Protocol):
    """As in conftest."""

    _memory: Path

    def connect(self) -> WeightStore: ...

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None: ...


def values(step: int) -> dict[str, bytes]:
    """Each step changes few bytes."""
    found = {}
    for name, (_, _, size) in TENSORS.items():
        content = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
        for number in range(step):
            content[number::97] ^= 3
        found[name] = content.tobytes()
    return found


def shard(step: int, rank: int, ranks: int = RANKS, seed: int = 0) -> list[NamedBuffer]:
    """What a rank holds of each tensor: a piece that begins anywhere. The middle rank holds nothing of `bias`."""
    found = []
    for name, (dtype, shape, size) in TENSORS.items():
        cuts = sorted(random.Random(seed + size).choices(range(size + 1), k=ranks - 1))
        edges = [0, *cuts, size] if name == "weight" else [0, *[size // 2] * (ranks - 1), size]
        piece = memoryview(values(step)[name])[edges[rank] : edges[rank + 1]]
        found.append(NamedBuffer(name, dtype, shape, piece, edges[rank], size - edges[rank + 1]))
    return found


class Learner:
    """The ranks of one start, each with a store of its own."""

    def __init__(self, connect: ConnectStore, ranks: int = RANKS, seed: int = 0) -> None:
        self.stores = [connect() for _ in range(ranks)]
        self._seed = seed

    def put(self, version: Version, *ranks: int, step: int | None = None) -> None:
        """Some ranks publish their shards."""
        for rank in ranks:
            pieces = shard(version.number if step is None else step, rank, len(self.stores), self._seed)
            self.stores[rank].publish(version, pieces, None, rank, len(self.stores))

    def publish(self, version: Version, step: int | None = None) -> None:
        """All ranks publish their shards, in any order, then rank 0 completes the version."""
        ranks = list(range(len(self.stores)))
        random.Random(version.number).shuffle(ranks)
        self.put(version, *ranks, step=step)
        assert self.stores[0].complete(version) == []

    def discard(self, *keep: Version) -> None:
        for store in self.stores:
            store.discard(keep)


def check(staged: StagedWeights, step: int) -> None:
    whole, wanted = staged.path.read_bytes(), values(step)
    assert [one.name for one in staged.manifest.buffers] == list(TENSORS)
    for one in staged.manifest.buffers:
        assert (one.dtype, one.shape) == TENSORS[one.name][:2]
        assert whole[one.offset : one.offset + one.num_bytes] == wanted[one.name]


def test_a_version_is_there_when_the_shards_of_all_ranks_are(connect_store: ConnectStore) -> None:
    learner, reader = Learner(connect_store), connect_store()
    learner.put(V[0], 0)
    assert learner.stores[0].complete(V[0]) == [1, 2]
    learner.put(V[0], 2)
    assert learner.stores[0].complete(V[0]) == [1] and reader.latest() is None
    with pytest.raises(WeightError):
        reader.fetch(V[0])
    learner.put(V[0], 1)
    assert learner.stores[0].complete(V[0]) == [] and reader.latest() == V[0]
    assert learner.stores[0].complete(V[0]) == [], "it may be asked again"
    assert reader.fetch(V[0]).manifest.num_bytes == 6080


def test_until_then_the_version_before_stays_whole(weight_rig: WeightRig) -> None:
    learner, reader = Learner(weight_rig.connect), weight_rig.connect()
    learner.publish(V[0])
    learner.put(V[1], 2, 1)
    learner.discard(V[0], V[1])
    learner.stores[1].discard([V[1]])
    assert reader.latest() == V[0]
    check(reader.fetch(V[0]), 0)
    learner.put(V[1], 0)
    assert reader.latest() == V[1]
    check(reader.fetch(V[1]), 1)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_bytes_are_the_same_from_any_number_of_ranks(weight_rig: WeightRig, ranks: int) -> None:
    learner, reader = Learner(weight_rig.connect, ranks, seed=ranks), weight_rig.connect()
    for number in range(6):  # with deltas the fifth is whole
        learner.publish(V[number])
        check(reader.fetch(V[number]), number)
        learner.discard(*V[max(0, number - 1) : number + 1])


def test_readers_that_missed_versions_and_newcomers_get_the_same_bytes(weight_rig: WeightRig) -> None:
    learner, reader = Learner(weight_rig.connect), weight_rig.connect()
    learner.publish(V[0])
    check(reader.fetch(V[0]), 0)
    for number in (1, 2, 3):
        learner.publish(V[number])
        learner.discard(*V[number - 1 : number + 1])
    check(reader.fetch(V[3]), 3)
    if hasattr(weight_rig, "_directory") and weight_rig._directory is None:
        return  # its one host has the published files themselves
    weight_rig._memory = weight_rig._memory.with_name("another_host")
    check(weight_rig.connect().fetch(V[3]), 3)


def test_a_rank_that_dies_leaves_the_version_before_and_the_next_start_goes_on(
    weight_rig: WeightRig, tmp_path: Path
) -> None:
    """It comes back with another number of ranks, after a rollback."""
    learner, reader = Learner(weight_rig.connect), weight_rig.connect()
    for number in (4, 5):
        learner.publish(V[number])
    learner.put(V[6], 0, 2)
    assert reader.latest() == V[5]
    check(reader.fetch(V[5]), 5)
    restarted = Learner(weight_rig.connect, 2, seed=9)
    restarted.put(NEXT, 1)
    assert reader.latest() == V[5]
    restarted.put(NEXT, 0)
    assert reader.latest() == NEXT
    check(reader.fetch(NEXT), 3)
    restarted.discard(NEXT)
    after = Version(2, 4)
    restarted.publish(after)
    check(reader.fetch(after), 4)
    restarted.discard(after)
    assert not list(tmp_path.rglob("1.*"))
    for rank in range(RANKS):
        with pytest.raises(Superseded):
            learner.stores[rank].publish(V[7], shard(7, rank), None, rank, RANKS)
    assert reader.latest() == after


def test_an_old_start_cannot_complete_its_version(weight_rig: WeightRig) -> None:
    old, new = Learner(weight_rig.connect), Learner(weight_rig.connect, 1)
    old.put(V[1], 0, 1)
    new.publish(NEXT)
    with pytest.raises(Superseded):
        old.put(V[1], 2)
        old.stores[0].complete(V[1])
    assert new.stores[0].latest() == NEXT


def test_deltas_are_for_each_shard(delta_rig: WeightRig) -> None:
    learner, reader = Learner(delta_rig.connect), delta_rig.connect()
    for number in range(5):
        learner.publish(V[number])
    for number, base in enumerate([None, V[0], V[1], V[2], None]):
        manifest, chunks = published(learner.stores[0]).open(V[number])
        assert [one.delta and one.delta.base for one in manifest.shards] == [base] * RANKS
        stored = sum(len(chunk) for each in chunks for chunk in each)
        assert stored == 6033 if base is None else stored < 2000
    check(reader.fetch(V[3]), 3)


def test_a_version_stays_whole_for_its_readers_when_it_is_discarded(weight_rig: WeightRig) -> None:
    """So do the versions that its deltas build on."""
    learner, reader = Learner(weight_rig.connect), weight_rig.connect()
    assert isinstance(reader, StagedWeightStore)
    for number in range(3):
        learner.publish(V[number])
    found = published(reader).open(V[2])
    shards = [checked(chunks, found.manifest, rank) for rank, chunks in enumerate(reader._shards(found, False))]
    begun = bytes(next(shards[0]))
    for number in range(3, 6):  # the fourth is whole
        learner.publish(V[number])
    learner.discard(V[5])
    with pytest.raises(WeightError):
        published(reader).open(V[2])
    read = [begun, *(bytes(chunk) for chunks in shards for chunk in chunks)]
    assert sum(map(len, read)) == sum(size for _, _, size in TENSORS.values())


def published(store: WeightStore) -> Any:
    assert isinstance(store, StagedWeightStore)
    return store._published


def pieces(*edges: tuple[int, int]) -> Iterator[list[NamedBuffer]]:
    """One shard for each range of a tensor of 100 bytes."""
    for start, end in edges:
        yield [NamedBuffer("w", "uint8", (100,), memoryview(bytes(end - start)), start, 100 - end)]


@pytest.mark.parametrize("edges", [[(0, 50), (51, 100)], [(0, 50), (49, 100)], [(0, 50), (50, 99)], [(0, 100)] * 2])
def test_shards_that_are_not_each_byte_once_are_refused(
    connect_store: ConnectStore, edges: Sequence[tuple[int, int]]
) -> None:
    first, second = connect_store(), connect_store()
    one, other = pieces(*edges)
    second.publish(V[0], other, None, 1, 2)
    with pytest.raises(WeightError, match=r"version 1\.0: the shards of 2 ranks are not the 100 bytes of the weights"):
        first.publish(V[0], one, None, 0, 2)
        first.fetch(V[0])


def test_a_damaged_shard_is_named_and_nothing_is_staged(weight_rig: WeightRig, tmp_path: Path) -> None:
    learner, reader = Learner(weight_rig.connect, 2, seed=4), weight_rig.connect()
    learner.publish(V[0])
    before = set(tmp_path.rglob("*.weights"))
    weight_rig.damage(learner.stores[0], V[0], 10)
    with pytest.raises(WeightsDamaged, match=r"chunk 0 of \d of rank 0 is not what was published"):
        reader.fetch(V[0])
    assert set(tmp_path.rglob("*.weights")) == before and not list(tmp_path.rglob("*.partial"))
    learner = Learner(weight_rig.connect, 2, seed=4)
    learner.publish(NEXT)
    check(reader.fetch(NEXT), 3)
