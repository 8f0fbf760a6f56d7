"""Writes the stream of a shard, or one chunk of it, where it belongs in a weight file, and reads it from there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from olmorl.queues.weights.chunks import Extent


def scatter(file: int, pieces: Sequence[Extent], chunks: Iterable[memoryview]) -> None:
    """Write a stream into the open `file`."""
    remaining = iter(pieces)
    offset = size = 0
    for chunk in chunks:
        while len(chunk):
            if not size:
                offset, size = next(remaining)
            written = os.pwrite(file, chunk[:size], offset)
            offset, size, chunk = offset + written, size - written, chunk[written:]


def gather(file: int, pieces: Sequence[Extent], chunk_bytes: int) -> Iterator[memoryview]:
    """Read a stream from the open `file` in chunks; each is valid until the next one. Ends early if the file does."""
    chunk, filled = memoryview(bytearray(chunk_bytes)), 0
    for offset, size in pieces:
        while size:
            count = os.preadv(file, [chunk[filled : filled + size]], offset)
            if not count:
                return
            offset, size, filled = offset + count, size - count, filled + count
            if filled == chunk_bytes:
                yield chunk
                filled = 0
    if filled:
        yield chunk[:filled]
