"""Weights as a stream of chunks with a hash each: a chunk that differs from the published one is named in an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import xxhash

from olmorl.errors import WeightsDamaged
from olmorl.messages import Buffer, Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer

CHUNK_BYTES = 16 * 2**20
_ALIGNMENT = 64


class Packing:
    """The chunks of a version in their order; chunks that have been iterated over are in the manifest.

    XXH3 finds damage, not forgery: 5.9 GB/s on one core of a small machine, where blake2b makes 0.4.
    """

    def __init__(
        self, version: Version, buffers: Iterable[NamedBuffer], chunk_bytes: int, probe: Probe | None = None
    ) -> None:
        self._version = version
        self._buffers = buffers
        self._chunk_bytes = chunk_bytes
        self._probe = probe
        self._layout: list[Buffer] = []
        self._hashes: list[str] = []
        self._num_bytes = 0

    def __iter__(self) -> Iterator[memoryview]:
        """Each chunk, valid until the next one."""
        for chunk in _cut(self._parts(), self._chunk_bytes):
            self._hashes.append(xxhash.xxh3_128_hexdigest(chunk))
            yield chunk

    def manifest(self) -> WeightsReady:
        """The manifest of the chunks that have been packed."""
        return WeightsReady(
            version=self._version,
            buffers=tuple(self._layout),
            num_bytes=self._num_bytes,
            chunk_bytes=self._chunk_bytes,
            chunk_hashes=tuple(self._hashes),
            probe=self._probe,
        )

    def _parts(self) -> Iterator[memoryview]:
        for name, dtype, shape, data in self._buffers:
            padding, content = memoryview(bytes(-self._num_bytes % _ALIGNMENT)), data.cast("B")
            offset = self._num_bytes + len(padding)
            self._layout.append(Buffer(name, dtype, tuple(shape), offset, len(content)))
            self._num_bytes = offset + len(content)
            yield padding
            yield content


def _cut(parts: Iterable[memoryview], size: int) -> Iterator[memoryview]:
    """Join and split into chunks of `size`; a chunk within one part is a view of it, not a copy."""
    joined, filled = memoryview(bytearray(size)), 0
    for part in parts:
        while len(part):
            if not filled and len(part) >= size:
                yield part[:size]
                part = part[size:]
                continue
            taken = part[: size - filled]
            joined[filled : filled + len(taken)] = taken
            filled, part = filled + len(taken), part[len(taken) :]
            if filled == size:
                yield joined
                filled = 0
    if filled:
        yield joined[:filled]


def checked(chunks: Iterable[memoryview], manifest: WeightsReady) -> Iterator[memoryview]:
    """Each chunk, after its hash was compared.

    Raises:
        WeightsDamaged: a chunk differs from the published one, or their number does.
    """
    for number, (chunk, expected) in enumerate(zip_longest(chunks, manifest.chunk_hashes)):
        if chunk is None or xxhash.xxh3_128_hexdigest(chunk) != expected:
            raise WeightsDamaged(
                f"version {manifest.version}: chunk {number} of {len(manifest.chunk_hashes)} is not what was "
                "published; the version is not applied"
            )
        yield chunk
