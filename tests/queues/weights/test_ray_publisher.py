"""Weights through Ray's object store while processes die: other readers continue, damaged bytes are never staged."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest

from olmorl.errors import Superseded, WeightError
from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights import ray_publisher
from olmorl.queues.weights.deltas import Published
from olmorl.queues.weights.store import StagedWeightStore, store_in_ray
from tests import waiting
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.cluster
CHUNK_BYTES = 1 << 16
NUM_CHUNKS = 16
V0, V1, V2 = Version(1, 0), Version(1, 1), Version(1, 2)


def weights(seed: int) -> list[NamedBuffer]:
    content = np.random.default_rng(seed).integers(0, 255, NUM_CHUNKS * CHUNK_BYTES, dtype=np.uint8)
    return [NamedBuffer("w", "uint8", content.shape, content.data)]


def is_whole(staged: StagedWeights) -> bool:
    return staged.path.read_bytes() == bytes(weights(staged.manifest.version.number)[0].data)


class Halting:
    """Published weights that halt after the first chunk: a file says so, and another one lets them go on."""

    def __init__(self, published: Any, folder: Path) -> None:
        self._published = published
        self._folder = folder

    def open(self, version: Version) -> Published:
        manifest, [chunks] = self._published.open(version)
        return Published(manifest, [self._halt(chunks)])

    def _halt(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        yield next(chunks)
        (self._folder / "halted").touch()
        until((self._folder / "go on").exists)
        yield from chunks


class Process:
    """A store in a separate process. As a receiver it halts during its first transfer."""

    def __init__(self, run: str, host: Path) -> None:
        store: Any = store_in_ray(run, CHUNK_BYTES, shared_memory=host)
        self._store = store
        self._halting = Halting(store._published, host)

    def publish(self, version: Version) -> None:
        self._store.publish(version, weights(version.number))

    def publish_half(self, version: Version) -> None:
        """As the second of two ranks."""
        self._store.publish(version, halves(version.number)[1], None, 1, 2)

    def fetch(self, version: Version) -> bool:
        self._store._published = self._halting
        return is_whole(self._store.fetch(version))


class Rig:
    """One run on several hosts, which are folders here."""

    def __init__(self, run: str, folder: Path) -> None:
        self.run = run
        self._folder = folder
        self._stores: list[StagedWeightStore] = []
        self._processes: list[Any] = []

    def host(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return path

    def store(self, host: str = "learner") -> StagedWeightStore:
        self._stores.append(store_in_ray(self.run, CHUNK_BYTES, shared_memory=self.host(host)))
        return self._stores[-1]

    def process(self, host: str) -> Any:
        import ray

        self._processes.append(ray.remote(Process).options(num_cpus=0).remote(self.run, self.host(host)))
        return self._processes[-1]

    def board(self) -> Any:
        import ray

        return ray.get_actor(f"olmorl-weights-{self.run}", "olmorl")

    def end(self) -> list[StagedWeightStore]:
        import ray

        for process in self._processes:
            ray.kill(process)
        for store in self._stores:
            store.sweep()
        return self._stores


@pytest.fixture(scope="module")
def ended(ray_here: None) -> Iterator[list[StagedWeightStore]]:
    """The stores of finished tests. All tests share a board, because a board takes a second to start."""
    import ray

    # Ray's workers cannot import a test: its classes and functions travel as code.
    modules = sys.modules[__name__], waiting
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    yield []
    for module in modules:
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def rig(ended: list[StagedWeightStore], tmp_path: Path) -> Iterator[Rig]:
    """Its board serves several tests."""
    made = Rig("shared", tmp_path)
    yield made
    ended += made.end()


@pytest.fixture
def own_rig(ended: list[StagedWeightStore], tmp_path: Path) -> Iterator[Rig]:
    """For tests that kill the board, or who made it."""
    made = Rig(uuid.uuid4().hex, tmp_path)
    yield made
    made.end()


def kill(actor: Any) -> None:
    """SIGKILL, and wait until Ray knows."""
    import ray

    def is_gone() -> bool:
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=HANG_S)
        except ray.exceptions.RayActorError:
            return True
        return False

    ray.kill(actor)
    until(is_gone)


def test_a_receiver_killed_in_the_middle_costs_its_host_one_more_transfer(rig: Rig) -> None:
    publisher = rig.store()
    publisher.publish(V0, weights(0))
    receiver, host = rig.process("b"), rig.host("b")
    receiver.fetch.remote(V0)
    until((host / "halted").exists)
    assert list(host.rglob("1.0.partial"))
    kill(receiver)
    publisher.publish(V1, weights(1))
    for version in (V0, V1):
        assert is_whole(rig.store("b").fetch(version))
    assert {path.suffix for path in host.rglob("1.*")} == {".weights", ".checked", ".lock"}


def test_a_slow_receiver_delays_no_other_and_gets_its_version(rig: Rig) -> None:
    import ray

    publisher = rig.store()
    publisher.publish(V0, weights(0))
    receiver, host = rig.process("slow"), rig.host("slow")
    whole = receiver.fetch.remote(V0)
    until((host / "halted").exists)
    for version in (V1, V2):
        publisher.publish(version, weights(version.number))
        publisher.discard([version])
        assert is_whole(rig.store("b").fetch(version))
    with pytest.raises(WeightError, match=r"1\.0 is not in Ray's object store"):
        rig.store("b").fetch(V0)
    (host / "go on").touch()
    assert ray.get(whole, timeout=HANG_S)


def test_a_corrupt_version_is_staged_nowhere_and_the_next_one_everywhere(rig: Rig) -> None:
    import ray

    store: Any = rig.store()
    readers = [rig.store("a"), rig.store("b")]
    store.publish(V0, weights(0))
    staged = [reader.fetch(V0) for reader in readers]
    store.publish(V1, weights(1))
    store._published._mine[V1].chunks[7] = ray.put(np.zeros(CHUNK_BYTES, np.uint8))
    store._published._show()
    for reader in readers:
        with pytest.raises(WeightError, match=f"chunk 7 of {NUM_CHUNKS} of rank 0 is not what was published"):
            reader.fetch(V1)
    assert all(map(is_whole, staged)), "what was in use is left alone"
    store.publish(V2, weights(2))
    assert all(is_whole(reader.fetch(V2)) for reader in readers)


def test_a_chunk_that_never_comes_is_an_error_and_the_next_version_is_fetched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray_publisher, "PULL_DEADLINE_S", 0.5)
    store: Any = rig.store()
    store.publish(V0, weights(0))
    never = ray.remote(lambda: 0).options(resources={"a host that is gone": 1}).remote()
    store._published._mine[V0].chunks[9] = never
    store._published._show()
    with pytest.raises(WeightError, match=r"1\.0: chunks from 8 of 16 did not come: GetTimeoutError"):
        rig.store("b").fetch(V0)
    assert not list(rig.host("b").rglob("1.0.[wpc]*"))
    store.publish(V1, weights(1))
    assert is_whole(rig.store("b").fetch(V1))


def test_many_receivers_fetch_while_versions_come_and_go(rig: Rig) -> None:
    publisher = rig.store()
    publisher.publish(V0, weights(0))

    def follow(number: int) -> set[Version]:
        store, seen = rig.store(f"host {number % 4}"), set()
        while V2 not in seen:
            version = store.latest()
            try:
                staged = store.fetch(version or V0)
            except WeightError as error:
                assert "discarded" in str(error)
                continue
            assert is_whole(staged)
            seen.add(staged.manifest.version)
        return seen

    with ThreadPoolExecutor(16) as threads:
        following = [threads.submit(follow, number) for number in range(16)]
        for version in (V1, V2):
            publisher.publish(version, weights(version.number))
            publisher.discard([])
        assert all(V2 in future.result(HANG_S) for future in following)
    for host in (f"host {number}" for number in range(4)):
        rig.store(host).fetch(V2)  # two that look at the same time may each take the other for one that uses it
        assert len(list(rig.host(host).rglob("*.weights"))) == 1


def test_a_board_that_died_is_made_again_by_its_publisher(own_rig: Rig) -> None:
    rig = own_rig
    publisher, reader = rig.store(), rig.store("b")
    publisher.publish(V0, weights(0))
    assert reader.latest() == V0
    kill(rig.board())
    with pytest.raises(WeightError, match=r"board .* is lost"):
        reader.fetch(V0)
    assert reader.latest() is None
    publisher.discard([V0])
    assert reader.latest() == V0
    assert is_whole(reader.fetch(V0))
    kill(rig.board())
    publisher.publish(V1, weights(1))
    until(lambda: latest_or_none(reader) == V1)
    assert is_whole(reader.fetch(V1))


def halves(seed: int) -> list[list[NamedBuffer]]:
    """The weights as the shards of two ranks."""
    [whole] = weights(seed)
    middle, size = NUM_CHUNKS * CHUNK_BYTES // 3, NUM_CHUNKS * CHUNK_BYTES
    first = whole._replace(data=whole.data[:middle], after=size - middle)
    return [[first], [whole._replace(data=whole.data[middle:], start=middle)]]


def test_a_new_board_gets_the_shards_of_all_ranks(own_rig: Rig) -> None:
    rig = own_rig
    ranks, reader = [rig.store(), rig.store("second")], rig.store("b")
    for rank, shard in enumerate(halves(0)):
        ranks[rank].publish(V0, shard, None, rank, 2)
    assert ranks[0].complete(V0) == [] and is_whole(reader.fetch(V0))
    kill(rig.board())
    assert ranks[0].complete(V0) == [1] and latest_or_none(reader) is None
    ranks[1].discard([V0])
    assert ranks[0].complete(V0) == [] and reader.latest() == V0
    assert is_whole(rig.store("c").fetch(V0))


def test_the_other_ranks_find_the_board_before_rank_0_has_put_its_shard(
    own_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_publisher, "SHOW_DEADLINE_S", 5.0)
    first, second = own_rig.store(), own_rig.store("second")
    there = Event()

    def slow() -> Iterator[NamedBuffer]:
        assert there.wait(HANG_S)
        yield from halves(0)[0]

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(first.publish, V0, slow(), None, 0, 2)
        try:
            second.publish(V0, halves(0)[1], None, 1, 2)
        finally:
            there.set()
        publishing.result(HANG_S)
    assert first.complete(V0) == [] and is_whole(own_rig.store("b").fetch(V0))


def test_the_board_forgets_versions_that_are_gone() -> None:
    board, entry = ray_publisher.Board(), ray_publisher.BoardEntry(b"", [])
    for number in range(10):
        board.show(1, 0, 1, {Version(1, number): entry})
    board.show(2, 0, 1, {Version(2, 9): entry})
    assert board.latest() == Version(2, 9)
    assert set(board._ranks) == set(board._shards) == {Version(2, 9)}


def test_a_poll_for_the_other_shards_is_one_question(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rig.store()
    first.publish(V0, halves(0)[0], None, 0, 2)
    asked, ask = list[str](), ray_publisher.PublishedObjects._ask
    monkeypatch.setattr(
        ray_publisher.PublishedObjects,
        "_ask",
        lambda self, board, method, *args: asked.append(method) or ask(self, board, method, *args),
    )
    assert first.complete(V0) == [1] and asked == ["missing"]


def test_a_rank_that_dies_while_it_publishes_leaves_the_version_before(own_rig: Rig) -> None:
    rig = own_rig
    first, second, reader = rig.store(), rig.process("second"), rig.store("b")
    first.publish(V0, halves(0)[0], None, 0, 2)
    second.publish_half.remote(V0)
    until(lambda: first.complete(V0) == [])
    first.publish(V1, halves(1)[0], None, 0, 2)
    first.discard([V0, V1])
    kill(second)
    assert first.complete(V1) == [1] and reader.latest() == V0, "until the learner restarts"
    restarted = rig.store()
    restarted.publish(Version(2, 1), weights(1))
    assert is_whole(reader.fetch(Version(2, 1))) and reader.latest() == Version(2, 1)


def latest_or_none(store: StagedWeightStore) -> Version | None:
    try:
        return store.latest()
    except WeightError:
        return None


def test_a_board_that_hangs_is_an_error_after_its_deadline(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    publisher, reader = rig.store(), rig.store("b")
    publisher.publish(V0, weights(0))
    assert reader.latest() == V0
    pid = ray.get(rig.board().__ray_call__.remote(lambda self: os.getpid()), timeout=HANG_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(ray_publisher, "BOARD_DEADLINE_S", 0.3)
        with pytest.raises(WeightError, match=r"did not answer 'latest' within 0\.3 s"):
            reader.latest()
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert is_whole(reader.fetch(V0))


def test_a_board_that_hangs_is_replaced_by_its_publisher(own_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    rig = own_rig
    publisher, reader = rig.store(), rig.store("b")
    publisher.publish(V0, weights(0))
    pid = ray.get(rig.board().__ray_call__.remote(lambda self: os.getpid()), timeout=HANG_S)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(ray_publisher, "BOARD_DEADLINE_S", 1.0)
    publisher.discard([V0])
    monkeypatch.undo()
    until(lambda: latest_or_none(reader) == V0)
    assert is_whole(reader.fetch(V0))
    until(lambda: not psutil.pid_exists(pid))


def test_a_new_start_of_the_learner_takes_over_from_a_dead_one(own_rig: Rig) -> None:
    import ray

    rig = own_rig
    first, reader = rig.process("learner"), rig.process("b")
    first.publish.remote(V2)
    until(lambda: latest_or_none(rig.store("b")) == V2)
    broken = reader.fetch.remote(V2)
    until((rig.host("b") / "halted").exists)
    kill(first)
    (rig.host("b") / "go on").touch()
    try:
        assert ray.get(broken, timeout=HANG_S), "its chunks were still there"
    except WeightError as error:
        assert "did not come" in str(error)
    second, late = rig.store(), rig.store()
    second.publish(Version(2, 1), weights(1))
    assert is_whole(rig.store("b").fetch(Version(2, 1)))
    with pytest.raises(Superseded, match="incarnation 2 has published"):
        late.publish(Version(1, 3), weights(3))
    assert rig.store("b").latest() == Version(2, 1)
