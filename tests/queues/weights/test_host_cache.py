"""A version that another host sends: it is staged whole and compared, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl.errors import WeightError, WeightsDamaged
from olmorl.messages import Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights import host_cache
from olmorl.queues.weights.host_cache import HostCache, TakeChunk
from olmorl.queues.weights.store import store_in_files
from olmorl.queues.weights.version_files import VersionFiles

V1 = Version(1, 1)
CHUNK_BYTES = 1000
CONTENT = np.random.default_rng(1).integers(0, 255, 4500, dtype=np.uint8)
SPLIT = 2200
Chunks = dict[tuple[int, int], bytes]


@pytest.fixture
def manifest(tmp_path: Path) -> WeightsReady:
    """Of two ranks."""
    store = store_in_files("r", tmp_path / "published", CHUNK_BYTES, shared_memory=tmp_path / "elsewhere")
    for rank, (start, end) in enumerate([(0, SPLIT), (SPLIT, len(CONTENT))]):
        piece = NamedBuffer("w", "uint8", CONTENT.shape, CONTENT[start:end].data, start, len(CONTENT) - end)
        store.publish(V1, [piece], None, rank, 2)
    store.complete(V1)
    return store.fetch(V1).manifest


@pytest.fixture
def chunks() -> Chunks:
    found = {}
    for rank, stream in enumerate([CONTENT[:SPLIT].tobytes(), CONTENT[SPLIT:].tobytes()]):
        for start in range(0, len(stream), CHUNK_BYTES):
            found[rank, start // CHUNK_BYTES] = stream[start : start + CHUNK_BYTES]
    return found


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "host", in_place=False)


def passing(chunks: Chunks, passed: list[tuple[int, int]] | None = None) -> Callable[[TakeChunk], None]:
    def transfer(take: TakeChunk) -> None:
        for (rank, number), chunk in chunks.items():
            take(rank, number, memoryview(chunk))
            if passed is not None:
                passed.append((rank, number))

    return transfer


def left(cache: HostCache) -> set[str]:
    return {path.name for path in Path(str(cache)).iterdir()} - {"1.1.lock"}


def test_chunks_may_come_in_any_order(cache: HostCache, manifest: WeightsReady, chunks: Chunks) -> None:
    cache.receive(manifest, passing(dict(reversed(chunks.items()))))
    assert cache.has(V1)
    staged = cache.fetch(manifest, [])
    assert staged.path.read_bytes() == CONTENT.tobytes(), "and a fetch moves no byte"


def test_a_damaged_chunk_is_named_and_nothing_is_staged(
    cache: HostCache, manifest: WeightsReady, chunks: Chunks
) -> None:
    chunks[1, 0] = b"x" + chunks[1, 0][1:]
    passed: list[tuple[int, int]] = []
    with pytest.raises(WeightsDamaged, match=r"version 1\.1: chunk 0 of 3 of rank 1 is not what was published"):
        cache.receive(manifest, passing(chunks, passed))
    assert len(passed) == len(chunks), "the transfer goes on: other hosts are in it"
    assert not cache.has(V1)
    assert left(cache) == set()


def test_a_chunk_that_did_not_come_is_named(cache: HostCache, manifest: WeightsReady, chunks: Chunks) -> None:
    del chunks[0, 2], chunks[1, 1]
    with pytest.raises(WeightsDamaged, match=r"2 chunks did not come, the first is chunk 2 of rank 0"):
        cache.receive(manifest, passing(chunks))
    assert left(cache) == set()


def test_a_transfer_that_fails_leaves_nothing(cache: HostCache, manifest: WeightsReady, chunks: Chunks) -> None:
    def fail(take: TakeChunk) -> None:
        passing(chunks)(take)
        raise RuntimeError("the connection is closed")

    with pytest.raises(RuntimeError, match="the connection is closed"):
        cache.receive(manifest, fail)
    assert left(cache) == set()
    cache.receive(manifest, passing(chunks))
    assert cache.has(V1), "and another try succeeds"


def test_without_room_the_transfer_goes_on_and_nothing_is_staged(
    cache: HostCache, manifest: WeightsReady, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(host_cache, "scatter", full)
    passed: list[tuple[int, int]] = []
    with pytest.raises(OSError, match="No space left"):
        cache.receive(manifest, passing(chunks, passed))
    assert len(passed) == len(chunks)
    assert left(cache) == set()


def test_a_version_that_is_here_is_not_written_again(cache: HostCache, manifest: WeightsReady, chunks: Chunks) -> None:
    cache.receive(manifest, passing(chunks))
    before = cache.fetch(manifest, []).path.stat()
    passed: list[tuple[int, int]] = []
    cache.receive(manifest, passing(chunks, passed))
    after = cache.fetch(manifest, []).path.stat()
    assert passed == []
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "an engine may map it"


def test_it_does_not_wait_for_a_process_that_stages_the_version(
    cache: HostCache, manifest: WeightsReady, chunks: Chunks
) -> None:
    files = VersionFiles(Path(str(cache)))
    files.folder.mkdir()
    passed: list[tuple[int, int]] = []
    with files.turn(V1):
        began_at = time.time() - 12
        os.utime(files.path(V1, "lock"), (began_at, began_at))
        expected = rf"version 1\.1: process {os.getpid()} of this host has staged it for 1[23]\.\d s$"
        with pytest.raises(WeightError, match=expected):
            cache.receive(manifest, passing(chunks, passed))
    assert passed == []
