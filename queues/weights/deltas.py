"""Exact differences between versions: a step with a small learning rate changes few bits of a bf16 weight.

The delta of a chunk is its XOR with the chunk of the version before, compressed by zstd. XOR is its own inverse, so the
deltas of a chain of versions can be applied in one pass. The hashes in the manifest are those of the whole chunks: they
are compared with the result, however many deltas it took.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard

from olmorl.errors import WeightsDamaged
from olmorl.messages import Buffer, Delta, Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import Extent, Packing

LEVEL = 1
"""Level of zstd: higher ones take longer and save nothing on these bytes."""
MOST_THREADS = 8
_CHUNKS_AHEAD = 2
"""Chunks that wait for each thread."""
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
R = TypeVar("R")


class Published(NamedTuple):
    """A version as it is stored: its manifest, and the chunks of each shard, not checked yet."""

    manifest: WeightsReady
    shards: Sequence[Iterator[memoryview]]


@dataclass
class _Kept:
    """A copy of the shard that was published last."""

    version: Version
    layout: tuple[Buffer, ...]
    pieces: tuple[Extent, ...]
    data: Bytes
    deltas: int
    """Since the last whole version."""


class Packer:
    """Packs the shards of a rank whole or as deltas. A delta is to the version before, of the same start and layout.

    Args:
        full_every: every so many versions one is whole; 1: all are.
    """

    def __init__(self, chunk_bytes: int, full_every: int = 1) -> None:
        self._chunk_bytes = chunk_bytes
        self._full_every = full_every
        self._kept: _Kept | None = None
        self._packed: _Kept | None = None

    def pack(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None) -> Packing | DeltaPacking:
        """The chunks to store, once; when all are stored, their manifest. Call `keep` when both are published."""
        packing = Packing(version, list(buffers), self._chunk_bytes, probe)
        if self._full_every == 1:
            return packing
        kept, self._kept, self._packed = self._kept, None, None  # its copy changes while the chunks are made
        if kept is None or (kept.layout, kept.pieces) != (packing.layout, packing.pieces):
            data = np.zeros(sum(size for _, size in packing.pieces), np.uint8)
            kept = _Kept(version, packing.layout, packing.pieces, data, 0)
        is_whole = kept.version == version or kept.deltas + 1 >= self._full_every
        is_whole = is_whole or kept.version.incarnation != version.incarnation
        base = None if is_whole else kept.version
        self._packed = replace(kept, version=version, deltas=0 if base is None else kept.deltas + 1)
        return DeltaPacking(packing, base, kept.data)

    def keep(self) -> None:
        """The shard that was packed last is published: the next one may be a delta to it."""
        self._kept, self._packed = self._packed, None


class DeltaPacking:
    """The chunks of one shard: whole, or as deltas to `data`, the bytes of `base`. Then `data` has the new bytes."""

    def __init__(self, packing: Packing, base: Version | None, data: Bytes) -> None:
        self._packing = packing
        self._base = base
        self._data = data
        self._sizes: list[int] = []
        self.pieces = packing.pieces
        self.num_bytes = packing.num_bytes

    def __iter__(self) -> Iterator[memoryview]:
        """Each stored chunk, valid until the next one."""
        if self._base is None:
            for chunk, old in self._chunks():
                old[:] = np.frombuffer(chunk, np.uint8)
                yield chunk
            return
        threads = _threads()
        for frame in in_order(_compressed, self._changes(_most_pending(threads)), threads):
            self._sizes.append(len(frame))
            yield memoryview(frame)

    def manifest(self) -> WeightsReady:
        """The manifest of the chunks that have been packed."""
        delta = None if self._base is None else Delta(self._base, tuple(self._sizes))
        return self._packing.manifest(delta)

    def _chunks(self) -> Iterator[tuple[memoryview, Bytes]]:
        """Each chunk, and its place in `data`."""
        offset = 0
        for chunk in self._packing:
            yield chunk, self._data[offset : offset + len(chunk)]
            offset += len(chunk)

    def _changes(self, most_pending: int) -> Iterator[tuple[Bytes, Bytes]]:
        """The XOR of each chunk with its place in `data`, and that place; in arrays that are used again and again."""
        arrays: deque[Bytes] = deque()
        for chunk, old in self._chunks():
            array = arrays.popleft() if len(arrays) > most_pending else np.empty(len(chunk), np.uint8)
            arrays.append(array)
            yield np.bitwise_xor(old, np.frombuffer(chunk, np.uint8), out=array[: len(chunk)]), old


def _compressed(change: tuple[Bytes, Bytes]) -> bytes:
    difference, old = change
    np.bitwise_xor(old, difference, out=old)
    return zstandard.ZstdCompressor(level=LEVEL).compress(difference.data)


def restored(
    version: Version, chain: Sequence[Iterable[memoryview]], base: Iterable[memoryview]
) -> Iterator[memoryview]:
    """The chunks of a shard, to be checked.

    Args:
        chain: the stored chunks of `version`, then those of the version that it is a delta to, and so on.
        base: whole chunks of the version that the last one of the chain is a delta to; they stay valid.

    Raises:
        WeightsDamaged: a delta is not what was published.
    """

    def apply(parts: tuple[Any, ...]) -> memoryview:
        whole, *frames = parts
        try:
            for frame in frames:
                change = zstandard.ZstdDecompressor().decompress(frame)
                whole = np.bitwise_xor(np.frombuffer(whole, np.uint8), np.frombuffer(change, np.uint8))
        except (ValueError, zstandard.ZstdError) as error:
            raise WeightsDamaged(
                f"version {version}: a delta is not what was published ({error}); the version is not applied"
            ) from None
        return memoryview(whole)

    # Chunks are valid until the next one, and wait here for a thread.
    deltas = [map(bytes, chunks) for chunks in chain]
    return in_order(apply, zip(base, *deltas, strict=False), _threads())


def bases(manifest: WeightsReady) -> set[Version]:
    """The versions that its shards are deltas to."""
    return {shard.delta.base for shard in manifest.shards if shard.delta is not None}


def with_bases(versions: Iterable[Version], bases_of: Callable[[Version], Iterable[Version]]) -> set[Version]:
    """The versions, and all that they are deltas to."""
    found: set[Version] = set()
    new = set(versions)
    while new:
        found |= new
        new = {base for version in new for base in bases_of(version)} - found
    return found


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """The results in the order of the items, worked out in threads; `_most_pending` items are taken ahead."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        remaining = iter(items)
        for item in islice(remaining, _most_pending(threads)):
            pending.append(pool.submit(function, item))
        while pending:
            result = pending.popleft().result()
            for item in islice(remaining, 1):
                pending.append(pool.submit(function, item))
            yield result


def _most_pending(threads: int) -> int:
    """Items that are worked on, or wait for a thread."""
    return _CHUNKS_AHEAD * threads


def _threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))
