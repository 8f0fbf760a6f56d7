"""The contract of every weight store, and of the stores that hold the bytes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pytest

from olmorl.errors import Superseded, WeightError
from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights, WeightStore
from olmorl.queues.weights import file_publisher, version_files
from olmorl.queues.weights.chunks import Packing, checked
from olmorl.queues.weights.pieces import gather, scatter
from olmorl.queues.weights.store import store_in_files
from olmorl.queues.weights.version_files import VersionFiles

ConnectStore = Callable[[], WeightStore]
V0, V1, V2, NEXT = Version(1, 0), Version(1, 1), Version(1, 2), Version(2, 1)
AFTER = Version(3, 2)
"""The first version of a start is always whole, so no version before is needed for it."""


class WeightRig(Protocol):
    """As in conftest."""

    def connect(self) -> WeightStore: ...

    def damage(self, publisher: WeightStore, version: Version, place: int) -> None: ...


def weights(seed: int) -> list[NamedBuffer]:
    """Two tensors of 4,000 and 33 bytes: the second starts unaligned, the last chunk is short."""
    random = np.random.default_rng(seed)
    matrix, bias = random.normal(size=(50, 20)).astype("<f4"), random.integers(0, 255, 33).astype("u1")
    return [
        NamedBuffer("layer.weight", "float32", (50, 20), memoryview(matrix)),
        NamedBuffer("layer.bias", "uint8", (33,), memoryview(bias)),
    ]


def read(staged: StagedWeights) -> list[bytes]:
    whole = staged.path.read_bytes()
    return [whole[b.offset : b.offset + b.num_bytes] for b in staged.manifest.buffers]


def plain(seed: int) -> list[bytes]:
    return [bytes(buffer.data.cast("B")) for buffer in weights(seed)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.weights")}


def test_latest_names_what_was_published_last(connect_store: ConnectStore) -> None:
    publisher, reader = connect_store(), connect_store()
    assert reader.latest() is None
    for version in (V0, V1):
        publisher.publish(version, weights(version.number))
        assert reader.latest() == version
        manifest = reader.fetch(version).manifest
        assert manifest.version == version
        assert [(b.name, b.dtype, b.shape, b.num_bytes) for b in manifest.buffers] == [
            ("layer.weight", "float32", (50, 20), 4000),
            ("layer.bias", "uint8", (33,), 33),
        ]


def test_a_version_is_never_overwritten(connect_store: ConnectStore) -> None:
    publisher = connect_store()
    publisher.publish(V0, weights(0))
    with pytest.raises(ValueError, match=r"1\.0 exists"):
        publisher.publish(V0, weights(1))


def test_an_older_incarnation_is_refused_and_a_rollback_is_not(connect_store: ConnectStore) -> None:
    publisher = connect_store()
    publisher.publish(V2, weights(0))
    publisher.publish(NEXT, weights(1))
    assert publisher.latest() == NEXT, "not the greater number: what the newest incarnation says"
    with pytest.raises(Superseded):
        connect_store().publish(Version(1, 3), weights(2))
    assert publisher.latest() == NEXT


def test_a_publish_that_was_overtaken_does_not_come_back(tmp_path: Path) -> None:
    slow, newer = (store_in_files("run", tmp_path / "shared", shared_memory=tmp_path / host) for host in "ab")

    def meanwhile() -> Iterator[NamedBuffer]:
        newer.publish(NEXT, weights(1))
        yield from weights(0)

    with pytest.raises(Superseded):
        slow.publish(V0, meanwhile())
    assert newer.latest() == NEXT


@pytest.mark.parametrize("at", ["1.0.shard_0", "1.0.part_0", "1.0.manifest", "latest"])
def test_a_full_disk_leaves_nothing_published_and_the_next_start_may_find_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_whole(path: Path, data: bytes) -> None:
        full() if path.name == at else version_files.write_whole(path, data)

    store = store_in_files("run", tmp_path / "disk", shared_memory=tmp_path / "memory")
    with monkeypatch.context() as patched:
        if at == "1.0.shard_0":
            patched.setattr(file_publisher, "_write", full)
        patched.setattr(file_publisher, "write_whole", write_whole)
        with pytest.raises(WeightError, match=r"version 1\.0: No space left on device in .*; make room there"):
            store.publish(V0, weights(0))
    assert store.latest() is None
    store.publish(NEXT, weights(0))
    assert read(store.fetch(NEXT)) == plain(0)


def test_one_version_that_cannot_be_removed_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: BinaryIO, how: int) -> None:
        """Like NFS: an exclusive lock needs a writable file."""
        if how & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if file.name.endswith("1.0.lock"):
            raise OSError(errno.ENOLCK, "No locks available")
        local(file, how)

    local = fcntl.flock
    store = store_in_files("run", tmp_path / "disk", shared_memory=tmp_path / "memory")
    for version in (V0, V1, V2, NEXT):
        store.publish(version, weights(0))
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(WeightError, match="No locks available"):
        store.discard([NEXT])
    assert {path.name for path in tmp_path.rglob("*.manifest")} == {"1.0.manifest", "2.1.manifest"}


def test_an_older_start_removes_nothing_of_a_newer_one(tmp_path: Path) -> None:
    older, newer = (store_in_files("run", tmp_path / "disk", shared_memory=tmp_path / "memory") for _ in range(2))
    older.publish(V0, weights(0))
    newer.publish(NEXT, weights(0))
    (manifest,) = (tmp_path / "disk").rglob(f"{NEXT}.manifest")
    unfinished = [manifest.with_name(name) for name in ("1.7.shard_0", "2.7.shard_0", "3.1.part_4")]
    for path in unfinished:
        path.write_bytes(b"being written")
    older.discard([V0])
    assert [path.exists() for path in unfinished] == [True, True, True]
    newer.discard([NEXT])
    assert [path.exists() for path in unfinished] == [False, True, True], "only what was never finished"


def test_a_version_that_is_not_there_is_an_error(connect_store: ConnectStore) -> None:
    publisher, reader = connect_store(), connect_store()
    with pytest.raises(WeightError, match="never published"):
        reader.fetch(V0)
    publisher.publish(V0, weights(0))
    publisher.publish(NEXT, weights(1))
    publisher.discard([])
    with pytest.raises(WeightError, match="discarded"):
        reader.fetch(V0)
    assert reader.fetch(NEXT).manifest.version == NEXT, "the latest is always kept"


def test_sweep_removes_everything(connect_store: ConnectStore) -> None:
    publisher, reader = connect_store(), connect_store()
    publisher.publish(V0, weights(0))
    reader.fetch(V0)
    publisher.sweep()
    assert reader.latest() is None
    publisher.sweep()


def test_the_bytes_arrive(weight_rig: WeightRig) -> None:
    publisher, reader = weight_rig.connect(), weight_rig.connect()
    publisher.publish(V0, weights(0))
    staged = reader.fetch(V0)
    manifest = staged.manifest
    assert (manifest.num_bytes, [len(shard.chunk_hashes) for shard in manifest.shards]) == (4065, [5])
    assert all(buffer.offset % 64 == 0 for buffer in manifest.buffers)
    assert staged.path.parent.name.startswith("olmorl-")
    assert read(staged) == plain(0)


@pytest.mark.parametrize("place", [0, 2500, 4032])
def test_a_damaged_chunk_is_named_and_not_staged(weight_rig: WeightRig, tmp_path: Path, place: int) -> None:
    publisher = weight_rig.connect()
    publisher.publish(V0, weights(0))
    weight_rig.damage(publisher, V0, place)
    before = files(tmp_path)
    for _ in range(2):
        with pytest.raises(WeightError, match=f"chunk {place // 1000} of 5"):
            weight_rig.connect().fetch(V0)
    assert files(tmp_path) == before
    publisher.publish(NEXT, weights(1))
    assert read(weight_rig.connect().fetch(NEXT)) == plain(1), "and the next whole version is"


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("change", [b"", b"more"])
def test_another_length_is_an_error(tmp_path: Path, change: bytes, mounted: bool) -> None:
    store = store_in_files("r", tmp_path / "m" if mounted else None, 1000, tmp_path / "memory")
    store.publish(V0, weights(0))
    [path] = tmp_path.rglob("*.shard_0" if mounted else "*.weights")
    path.write_bytes(path.read_bytes() + change if change else path.read_bytes()[:-1])
    with pytest.raises(WeightError):
        store.fetch(V0)


def test_damage_after_the_first_check_is_found(weight_rig: WeightRig, request: pytest.FixtureRequest) -> None:
    publisher = weight_rig.connect()
    publisher.publish(V0, weights(0))
    staged = weight_rig.connect().fetch(V0)
    whole = bytearray(staged.path.read_bytes())
    whole[100] ^= 1
    staged.path.write_bytes(whole)
    if "[file]" in request.node.name:
        with pytest.raises(WeightError):
            weight_rig.connect().fetch(V0)
    else:
        assert read(weight_rig.connect().fetch(V0)) == plain(0), "staged again"


def test_a_version_in_use_is_not_freed(weight_rig: WeightRig, tmp_path: Path) -> None:
    publisher, reader = weight_rig.connect(), weight_rig.connect()
    publisher.publish(V0, weights(0))
    staged = reader.fetch(V0)
    for version in (NEXT, AFTER):
        publisher.publish(version, weights(version.number))
    publisher.discard([])
    assert read(staged) == plain(0)
    assert "2.1.weights" not in files(tmp_path)
    reader.fetch(AFTER)
    publisher.discard([])
    assert files(tmp_path) == {"3.2.weights"}


def test_what_a_dead_process_left_unfinished_is_removed(weight_rig: WeightRig, tmp_path: Path) -> None:
    publisher, reader = weight_rig.connect(), weight_rig.connect()
    publisher.publish(V0, weights(0))
    folder = reader.fetch(V0).path.parent
    (folder / "1.1.partial").write_bytes(b"half")
    (folder / "1.1.lock").touch()
    publisher.publish(V2, weights(2))
    reader.fetch(V2)
    publisher.discard([])
    assert not [path.name for path in folder.iterdir() if path.name.startswith("1.1")]


def test_a_reader_of_a_version_in_writing_waits_and_names_the_writer(
    weight_rig: WeightRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_files, "_TURN_DEADLINE_S", 0.1)
    publisher, reader = weight_rig.connect(), weight_rig.connect()
    publisher.publish(V0, weights(0))
    publisher.publish(V1, weights(1))
    folder = reader.fetch(V0).path.parent
    with VersionFiles(folder).turn(V1), pytest.raises(WeightError, match=f"process {os.getpid()} of this host"):
        weight_rig.connect().fetch(V1)
    assert read(weight_rig.connect().fetch(V1)) == plain(1)


def test_one_copy_a_host(weight_rig: WeightRig) -> None:
    publisher = weight_rig.connect()
    publisher.publish(V0, weights(0))
    first = weight_rig.connect().fetch(V0)
    written = first.path.stat()
    second = weight_rig.connect().fetch(V0)
    assert second.path == first.path
    assert (second.path.stat().st_mtime_ns, second.path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)


def test_in_shared_memory_nothing_is_copied(tmp_path: Path) -> None:
    store = store_in_files("r", chunk_bytes=1000, shared_memory=tmp_path)
    store.publish(V0, weights(0))
    assert store.fetch(V0).path == tmp_path / "olmorl-r" / "1.0.weights"
    assert files(tmp_path) == {"1.0.weights"}


def test_a_publish_that_breaks_off_changes_nothing(weight_rig: WeightRig, tmp_path: Path) -> None:
    publisher = weight_rig.connect()
    publisher.publish(V0, weights(0))

    def broken() -> Iterator[NamedBuffer]:
        yield weights(1)[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WeightError, match="No space left"):
        publisher.publish(V1, broken())
    assert publisher.latest() == V0
    assert not list(tmp_path.rglob("*.partial"))
    with pytest.raises(WeightError):
        publisher.fetch(V1)
    publisher.publish(V1, weights(1))


def test_engines_of_one_host_fetch_at_the_same_time(weight_rig: WeightRig) -> None:
    publisher = weight_rig.connect()
    publisher.publish(V0, weights(0))
    stores = [weight_rig.connect() for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        fetched = list(threads.map(lambda store: read(store.fetch(V0)), stores))
    assert fetched == [plain(0)] * 8


@pytest.mark.parametrize("sizes", [[], [0], [1000], [999, 1, 1000], [2500, 64, 3000]])
def test_chunks_are_what_the_buffers_are_in_a_row(sizes: list[int], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parts = [random.integers(0, 255, size).astype("u1") for size in sizes]
    packing = Packing(V0, [NamedBuffer(f"b{i}", "uint8", part.shape, part.data) for i, part in enumerate(parts)], 1000)
    stream = b"".join(bytes(chunk) for chunk in packing)
    assert stream == b"".join(part.tobytes() for part in parts)
    manifest = packing.manifest()
    [shard] = manifest.shards
    assert len(shard.chunk_hashes) == -(-len(stream) // 1000)
    again = [memoryview(stream)[start : start + 1000] for start in range(0, len(stream), 1000)]
    with (tmp_path / "whole").open("w+b") as file:
        file.truncate(manifest.num_bytes)
        scatter(file.fileno(), shard.pieces, checked(again, manifest, 0))
        whole = file.read()
        assert b"".join(bytes(chunk) for chunk in gather(file.fileno(), shard.pieces, 1000)) == stream
    for part, buffer in zip(parts, manifest.buffers, strict=True):
        assert whole[buffer.offset : buffer.offset + buffer.num_bytes] == part.tobytes()
    with pytest.raises(WeightError, match="chunk"):
        list(checked([*again, memoryview(b"more")], manifest, 0))
