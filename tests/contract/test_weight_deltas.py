"""The contract of stores that publish deltas: the bytes are those of the version, whichever way they came."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from olmorl.errors import WeightError, WeightsDamaged
from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights, WeightStore
from olmorl.queues.weights import deltas
from olmorl.queues.weights.deltas import Packer, in_order, restored
from olmorl.queues.weights.store import StagedWeightStore, store_in_files

SIZE = 40_000


class WeightRig(Protocol):
    """As in conftest."""

    _memory: Path

    def connect(self) -> WeightStore: ...

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None: ...


@pytest.fixture
def policy() -> Callable[[int], list[NamedBuffer]]:
    """A tensor in bf16, of which each step changes 2%, and one that never changes."""
    random = np.random.default_rng(0)
    steps = [random.integers(0, 1 << 16, SIZE // 2).astype("<u2")]
    for _ in range(12):
        changed = steps[-1].copy()
        where = random.choice(len(changed), len(changed) // 50, replace=False)
        changed[where] ^= random.integers(1, 4, len(where)).astype("<u2")
        steps.append(changed)
    fixed = random.normal(size=(3, 11)).astype("<f4")

    def at(step: int) -> list[NamedBuffer]:
        return [
            NamedBuffer("weight", "bfloat16", (SIZE // 2,), memoryview(steps[step].view(np.uint8))),
            NamedBuffer("norm", "float32", (3, 11), memoryview(fixed)),
        ]

    return at


def check(staged: StagedWeights, buffers: Sequence[NamedBuffer]) -> None:
    whole = staged.path.read_bytes()
    for placed, buffer in zip(staged.manifest.buffers, buffers, strict=True):
        assert whole[placed.offset : placed.offset + placed.num_bytes] == bytes(buffer.data.cast("B"))


def published(store: WeightStore) -> Any:
    assert isinstance(store, StagedWeightStore)
    return store._published


def bases(store: WeightStore, *versions: Version) -> list[Version | None]:
    deltas = [published(store).open(version).manifest.shards[0].delta for version in versions]
    return [delta and delta.base for delta in deltas]


def stored_bytes(store: WeightStore, version: Version) -> int:
    return sum(len(chunk) for chunk in published(store).open(version).shards[0])


V = [Version(1, number) for number in range(12)]


def test_every_fourth_version_is_whole_and_the_others_are_small(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]
) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    for number in range(9):
        publisher.publish(V[number], policy(number))
        check(reader.fetch(V[number]), policy(number))
    assert bases(publisher, *V[:9]) == [None, V[0], V[1], V[2], None, V[4], V[5], V[6], None]
    whole = stored_bytes(publisher, V[4])
    assert whole > SIZE and stored_bytes(publisher, V[5]) < 0.1 * whole


def test_a_newcomer_and_one_that_missed_versions_get_the_same_bytes(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    publisher.publish(V[0], policy(0))
    reader.fetch(V[0])
    for number in (1, 2, 3):
        publisher.publish(V[number], policy(number))
        publisher.discard(V[number - 1 : number + 1])
    opened: list[Version] = []
    open_ = type(published(reader)).open
    monkeypatch.setattr(published(reader), "open", lambda v: (opened.append(v), open_(published(reader), v))[1])
    check(reader.fetch(V[3]), policy(3))
    assert opened == [V[3], V[2], V[1]], "the version that is staged here is not fetched again"
    delta_rig._memory = delta_rig._memory.with_name("another_host")
    check(delta_rig.connect().fetch(V[3]), policy(3))


def test_what_a_kept_version_is_built_on_is_kept_and_nothing_else(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]
) -> None:
    publisher = delta_rig.connect()
    for number in range(6):
        publisher.publish(V[number], policy(number))
        publisher.discard(V[max(0, number - 1) : number + 1])
    assert bases(publisher, V[4], V[5]) == [None, V[4]]
    for gone in V[:4]:
        with pytest.raises(WeightError, match="discarded"):
            published(publisher).open(gone)


def test_a_start_after_a_crash_and_a_rollback_begin_with_a_whole_version(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]
) -> None:
    crashed, reader = delta_rig.connect(), delta_rig.connect()
    for number in range(3):
        crashed.publish(V[number], policy(number))
    check(reader.fetch(V[2]), policy(2))
    restarted = delta_rig.connect()
    for number in (1, 2):  # back to step 1, and on from there
        restarted.publish(Version(2, number), policy(number + 5))
        check(reader.fetch(Version(2, number)), policy(number + 5))
    assert bases(restarted, Version(2, 1), Version(2, 2)) == [None, Version(2, 1)]
    restarted.publish(Version(3, 2), policy(3))
    assert bases(restarted, Version(3, 2)) == [None], "also of the same process"
    check(reader.fetch(Version(3, 2)), policy(3))


def test_a_publish_that_breaks_off_makes_the_next_version_whole(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]
) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    publisher.publish(V[0], policy(0))

    def broken() -> Iterator[NamedBuffer]:
        yield policy(1)[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WeightError, match="No space left"):
        publisher.publish(V[1], broken())
    for number in (2, 3):
        publisher.publish(V[number], policy(number))
        check(reader.fetch(V[number]), policy(number))


def test_another_layout_is_published_whole(delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    publisher.publish(V[0], policy(0))
    publisher.publish(V[1], policy(1)[::-1])
    check(reader.fetch(V[1]), policy(1)[::-1])
    publisher.publish(V[2], policy(2)[::-1])
    assert bases(publisher, V[1], V[2]) == [None, V[1]]
    check(reader.fetch(V[2]), policy(2)[::-1])


def test_a_damaged_delta_is_named_and_the_next_whole_version_heals(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]], tmp_path: Path
) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    for number in (0, 1):
        publisher.publish(V[number], policy(number))
    delta_rig.damage(publisher, V[1], 20)
    with pytest.raises(WeightsDamaged, match=r"version 1\.1: .* not what was published.*not applied"):
        reader.fetch(V[1])
    assert not list((tmp_path / "memory").rglob("1.1.weights"))
    for number in (2, 3):
        publisher.publish(V[number], policy(number))
        with pytest.raises(WeightsDamaged):
            reader.fetch(V[number])
    publisher.publish(V[4], policy(4))
    check(reader.fetch(V[4]), policy(4))


def test_damage_on_this_host_is_mended_from_what_is_published_and_logged(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]], caplog: pytest.LogCaptureFixture
) -> None:
    publisher, reader = delta_rig.connect(), delta_rig.connect()
    publisher.publish(V[0], policy(0))
    staged = reader.fetch(V[0])
    with staged.path.open("r+b") as file:
        stat = staged.path.stat()
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    os.utime(staged.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as memory that flips a bit leaves it
    for number in (1, 2):
        publisher.publish(V[number], policy(number))
        check(reader.fetch(V[number]), policy(number))
    said = f"version 1.1 was built from the last whole one: a version in {staged.path.parent} is damaged"
    assert caplog.messages == [said]


def test_a_chain_whose_beginning_is_gone_is_an_error_and_not_wrong_weights(
    delta_rig: WeightRig, policy: Callable[[int], list[NamedBuffer]]
) -> None:
    publisher = delta_rig.connect()
    for number in (0, 1, 2):
        publisher.publish(V[number], policy(number))
    store = published(publisher)
    if hasattr(store, "_mine"):
        del store._mine[V[1]]
        store._show()
    else:
        store._files.path(V[1], "manifest").unlink()
    with pytest.raises(WeightError, match=r"version 1\.1 is not in "):
        delta_rig.connect().fetch(V[2])


def test_versions_in_the_shared_memory_of_one_host_are_whole(
    policy: Callable[[int], list[NamedBuffer]], tmp_path: Path
) -> None:
    store = store_in_files("r", None, 1000, tmp_path, full_every=4)
    for number in (0, 1):
        store.publish(V[number], policy(number))
    assert bases(store, V[0], V[1]) == [None, None]


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_that_are_used_again_are_never_overwritten_early(
    policy: Callable[[int], list[NamedBuffer]], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Many chunks on few threads; the threads are slower than what feeds them."""
    compress = deltas._compressed

    def slowly(change: Any) -> bytes:
        time.sleep(0.001)
        return compress(change)

    monkeypatch.setattr(deltas, "_compressed", slowly)
    monkeypatch.setattr(deltas, "_threads", lambda: threads)
    packer = Packer(500, 10)
    stored = []
    for number in range(3):
        packed = packer.pack(V[number], policy(number), None)
        chunks = [bytes(chunk) for chunk in packed]
        packer.keep()
        stored.append((packed.manifest(), chunks))
    chain = [map(memoryview, chunks) for _, chunks in stored[:0:-1]]
    whole = b"".join(restored(V[2], chain, map(memoryview, stored[0][1])))
    assert len(chunks) > 50 and len(whole) == sum(size for _, size in stored[2][0].shards[0].pieces)
    assert whole[:SIZE] == bytes(policy(2)[0].data)


def test_results_come_in_the_order_of_the_items_and_errors_are_raised() -> None:
    assert list(in_order(lambda n: n * n, range(50), 3)) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda n: 1 // (n - 5), range(50), 2))
