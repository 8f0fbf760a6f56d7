"""Measures the free space of a disk and describes it for messages."""

from __future__ import annotations

import shutil
from math import log2
from pathlib import Path

LEAST_BYTES = 1 << 20
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def full(folder: Path) -> str:
    """The start of a message for a full disk. The caller adds the fix."""
    return f"the disk of {folder} is full ({free(folder)})"


def is_left(folder: Path) -> bool:
    """Whether the disk of `folder` has space for more than a few small files."""
    return shutil.disk_usage(folder).free >= LEAST_BYTES


def free(folder: Path) -> str:
    """The free space of the disk of `folder`, as text. The folder need not exist."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    try:
        found = shutil.disk_usage(there)
    except OSError as error:
        return f"its free space is unknown: {error.strerror}"
    return f"{size(found.free)} of {size(found.total)} free"


def size(num_bytes: float) -> str:
    """A size as text, for instance 12.5 GiB."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} bytes"
    power = min(int(log2(num_bytes) // 10), len(_UNITS))
    return f"{num_bytes / 1024**power:.3g} {_UNITS[power - 1]}"
