"""Bytes in chunks with a hash each: what was written is what is read, or an error names the chunk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from olmorl.errors import WeightError
from olmorl.messages import WeightsReady


class ChunkHashes:
    """Hashes a stream of bytes, one hash a chunk.

    XXH3 finds damage, not forgery: 5.9 GB/s on one core of a small machine, where blake2b makes 0.4.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes
        self._hash = xxhash.xxh3_128()
        self._done: list[str] = []

    def update(self, data: memoryview) -> None:
        """Go on with `data`."""
        while len(data):
            part, data = data[: self._room], data[self._room :]
            self._hash.update(part)
            self._room -= len(part)
            if self._room == 0:
                self._close_chunk()

    def finish(self) -> tuple[str, ...]:
        """The hashes of all chunks, the last and shorter one included."""
        if self._room < self._chunk_bytes:
            self._close_chunk()
        return tuple(self._done)

    def _close_chunk(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash = xxhash.xxh3_128()
        self._room = self._chunk_bytes


def read_checked(source: BinaryIO, manifest: WeightsReady, path: Path) -> Iterator[memoryview]:
    """Each chunk of `source`, after its hash was compared; a chunk is valid until the next one.

    Raises:
        WeightError: a chunk that is not what was published, or a file of another length.
    """
    buffer = memoryview(bytearray(manifest.chunk_bytes))
    for number, expected in enumerate(manifest.chunk_hashes):
        length = min(manifest.chunk_bytes, manifest.num_bytes - number * manifest.chunk_bytes)
        chunk = buffer[:length]
        if _read_whole(source, chunk) != length or xxhash.xxh3_128_hexdigest(chunk) != expected:
            raise WeightError(
                f"version {manifest.version}: chunk {number} of {len(manifest.chunk_hashes)} in {path} is not what was "
                "published; the version is not applied"
            )
        yield chunk
    if source.read(1):
        raise WeightError(f"version {manifest.version}: {path} is longer than what was published")


def _read_whole(source: BinaryIO, chunk: memoryview) -> int:
    filled = 0
    while filled < len(chunk) and (count := source.readinto(chunk[filled:])):  # type: ignore[attr-defined]
        filled += count
    return filled
