"""Measures the memory that this machine gives to its processes."""

from __future__ import annotations

import os
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/memory.max")


def host_memory() -> int:
    """Bytes of this machine, or of its container if that has less."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    given = _LIMIT.read_text(encoding="ascii").strip() if _LIMIT.is_file() else ""
    return min(there, int(given)) if given.isdecimal() else there
