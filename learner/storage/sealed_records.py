"""Binary records with a digest each, for the journal and for `rollouts/`.

    head      8 bytes: the head of a skippable frame, so that zstd tools read over it
    length    8 bytes, little-endian: of the record
    digest    8 bytes: XXH3 of the record, with a seed of the file's own name where its content does not say it
    checksum  4 bytes: CRC-32 of length and digest
    record

The end of a file that is complete is a head without a record: its length is that of the file before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import xxhash

_HEAD = b"\x5e\x2a\x4d\x18" + (20).to_bytes(4, "little")
_END = b"\x5f\x2a\x4d\x18" + (20).to_bytes(4, "little")
_HEADER_BYTES = len(_HEAD) + 20


def header(record: bytes, name: str = "") -> bytes:
    """Returns the header before a record of the file `name`."""
    return _HEAD + _checked(len(record), xxhash.xxh3_64_digest(record, _seed(name)))


def end(num_bytes: int) -> bytes:
    """The end of a complete file, after its records of `num_bytes`."""
    return _END + _checked(num_bytes, bytes(8))


def split(data: memoryview, *, complete: bool, name: str = "") -> Iterator[memoryview]:
    """Yields the records of the file `name`. The end of one that is not `complete` may be torn.

    Raises:
        ValueError: a record is not what was written, or a complete file has no end or more than that.
    """
    done = 0
    while done < len(data):
        found = data[done : done + _HEADER_BYTES]
        length, digest = int.from_bytes(found[8:16], "little"), bytes(found[16:24])
        kind = bytes(found[:8])
        if len(found) == _HEADER_BYTES and (kind not in (_HEAD, _END) or found[8:] != _checked(length, digest)):
            raise ValueError(f"at byte {done:,} bytes were changed")
        if kind == _END and length == done and done + _HEADER_BYTES == len(data):
            return
        done += _HEADER_BYTES + length
        if kind == _END or done > len(data):
            break
        record = data[done - length : done]
        if digest != xxhash.xxh3_64_digest(record, _seed(name)):
            raise ValueError(f"in the record before byte {done:,} bytes were changed, or it is of another file")
        yield record
    if complete:
        raise ValueError("it is cut, or longer than it was")


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def _checked(length: int, digest: bytes) -> bytes:
    numbers = length.to_bytes(8, "little") + digest
    return numbers + zlib.crc32(numbers).to_bytes(4, "little")
