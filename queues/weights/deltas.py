"""Exact differences between versions: of a step of a small learning rate few bits of a bf16 weight change.

The delta of a chunk is its XOR with the chunk of the version before, compressed by zstd. XOR is its own inverse, so the
deltas of a chain of versions can be applied in one pass. The hashes in the manifest are those of the whole chunks: they
are compared with the result, however many deltas it took.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard

from olmorl.errors import WeightsDamaged
from olmorl.messages import Buffer, Delta, Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import Packing, layout

LEVEL = 1
"""Of zstd: higher ones take longer and save nothing on these bytes."""
MOST_THREADS = 8
_CHUNKS_AHEAD = 2
"""Of each thread: work that waits for it."""
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
R = TypeVar("R")


class Published(NamedTuple):
    """A version as it is stored: its manifest, and its chunks, not checked yet."""

    manifest: WeightsReady
    chunks: Iterator[memoryview]


@dataclass
class _Kept:
    """A copy of the version that was published last."""

    version: Version
    layout: tuple[Buffer, ...]
    data: Bytes
    deltas: int
    """Since the last whole version."""


class Packer:
    """Packs versions whole or as deltas. A delta is to the version before, of the same start and the same layout.

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
        if self._full_every == 1:
            return Packing(version, buffers, self._chunk_bytes, probe)
        buffers = list(buffers)
        kept, self._kept, self._packed = self._kept, None, None  # its copy changes while the chunks are made
        packing, found = Packing(version, buffers, self._chunk_bytes, probe), layout(buffers)
        if kept is None or kept.layout != found:
            kept = _Kept(version, found, np.zeros(_end(found), np.uint8), 0)
        is_whole = kept.version == version or kept.deltas + 1 >= self._full_every
        is_whole = is_whole or kept.version.incarnation != version.incarnation
        base = None if is_whole else kept.version
        self._packed = _Kept(version, found, kept.data, 0 if base is None else kept.deltas + 1)
        return DeltaPacking(packing, base, kept.data)

    def keep(self) -> None:
        """The version that was packed last is published: the next one may be a delta to it."""
        self._kept, self._packed = self._packed, None


class DeltaPacking:
    """The chunks of one version: whole, or as deltas to `data`, the bytes of `base`. Then `data` has the new bytes."""

    def __init__(self, packing: Packing, base: Version | None, data: Bytes) -> None:
        self._packing = packing
        self._base = base
        self._data = data
        self._sizes: list[int] = []

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


def restored(chain: Sequence[Published], base: Iterable[memoryview]) -> Iterator[memoryview]:
    """The chunks of a version, to be checked.

    Args:
        chain: the version, then the one that it is a delta to, and so on.
        base: whole chunks of the version that the last one of the chain is a delta to.

    Raises:
        WeightsDamaged: a delta is not what was published.
    """
    newest = chain[0].manifest.version

    def apply(parts: tuple[Any, ...]) -> memoryview:
        whole, *frames = parts
        try:
            for frame in frames:
                change = zstandard.ZstdDecompressor().decompress(frame)
                whole = np.bitwise_xor(np.frombuffer(whole, np.uint8), np.frombuffer(change, np.uint8))
        except (ValueError, zstandard.ZstdError) as error:
            raise WeightsDamaged(
                f"version {newest}: a delta is not what was published ({error}); the version is not applied"
            ) from None
        return memoryview(whole)

    # Chunks are valid until the next one, and wait here for a thread.
    deltas = [map(bytes, published.chunks) for published in chain]
    return in_order(apply, zip(base, *deltas, strict=False), _threads())


def with_bases(versions: Iterable[Version], base_of: Callable[[Version], Version | None]) -> set[Version]:
    """The versions, and all that they are deltas to."""
    found: set[Version] = set()
    for version in versions:
        at: Version | None = version
        while at is not None and at not in found:
            found.add(at)
            at = base_of(at)
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


def _end(found: Sequence[Buffer]) -> int:
    return max((buffer.offset + buffer.num_bytes for buffer in found), default=0)
