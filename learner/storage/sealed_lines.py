"""JSON lines with a checksum each. Each checksum continues the one before, so a missing line is noticed too."""

from __future__ import annotations

import zlib

_SEAL = b',"crc":"%08x"}'
_SEAL_BYTES = len(_SEAL % 0)


def seal(record: bytes, before: int = 0) -> tuple[bytes, int]:
    """Returns a JSON object as a sealed line without its line end, and its checksum.

    Args:
        before: the checksum of the line before; 0 for a first line.
    """
    checksum = zlib.crc32(record[:-1], before)
    return record[:-1] + _SEAL % checksum, checksum


def check(line: bytes, before: int = 0) -> int:
    """Returns the checksum of a sealed line. Raises ValueError when the line, or the one before, is another one."""
    checksum = zlib.crc32(line[:-_SEAL_BYTES], before)
    if line[-_SEAL_BYTES:] != _SEAL % checksum:
        raise ValueError("its checksum does not fit: bytes were changed, or a line before it is missing")
    return checksum


def checksum_of(line: bytes) -> int:
    """The checksum that a sealed line carries. Raises ValueError when it is none."""
    return int(line[-10:-2], 16)
