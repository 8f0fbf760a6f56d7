"""Named semaphores that a process of the run must not leave in shared memory."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing import resource_tracker

from olmorl.actors.vllm_engine import reaper


def unlink_own() -> None:
    """Unlink the semaphores that this process has open; they work on until it ends.

    Libraries make them, for locks of progress bars for example, and leave the unlinking to a tracker process. Ray ends
    that process together with this one.
    """
    for path in reaper.shared_memory([os.getpid()]):
        if path.name.startswith("sem.mp-"):
            with suppress(FileNotFoundError):
                path.unlink()
                resource_tracker.unregister(f"/{path.name.removeprefix('sem.')}", "semaphore")
