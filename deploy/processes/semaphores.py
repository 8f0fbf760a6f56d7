"""Named semaphores that a process of the run must not leave in shared memory."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path


def unlink_own() -> None:
    """Unlink the semaphores that this process has open; they work on until it ends.

    Libraries make them, for locks of progress bars for example, and leave the unlinking to a tracker process. Ray ends
    that process together with this one. Their mappings show old names, so they are found by their inodes.
    """
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    mapped = {int(fields[4]) for fields in maps if fields[-1].startswith("/dev/shm/")}
    for path in Path("/dev/shm").glob("sem.mp-*"):
        with suppress(FileNotFoundError):
            if path.stat().st_ino in mapped:
                path.unlink()
                resource_tracker.unregister(f"/{path.name.removeprefix('sem.')}", "semaphore")
