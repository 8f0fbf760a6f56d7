"""The Ray that a run starts for itself, on one machine."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress

import psutil

from olmorl.errors import RunEnded

_NAMES = ("gcs_server", "raylet")
_LOOK_S = 0.5
_PATIENCE_S = 10.0
"""For the run to end in order: it may wait in the middle of a call to a Ray that is not there any more."""


class OwnRay:
    """When one of its daemons dies, all that it started ends, and the run by name.

    A thread looks after them, as whoever asks something of half a Ray is kept waiting for a minute.
    """

    def __init__(self) -> None:
        """The daemons are children of this process."""
        self._daemons = {child.name(): child for child in _children(psutil.Process()) if child.name() in _NAMES}
        self._lost = ""
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def broken(self) -> bool:
        """There is nothing left to ask."""
        return bool(self._lost)

    async def keep(self) -> None:
        """As long as all of them live.

        Raises:
            RunEnded: one is gone, and with it what Ray knew.
        """
        while True:
            if self._lost:
                raise RunEnded(self._end)
            await asyncio.sleep(_LOOK_S)

    def release(self) -> None:
        """They may end from now on."""
        self._over.set()

    @property
    def _end(self) -> str:
        return f"{self._lost} of the run's own Ray died; --resume goes on from the last checkpoint"

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            lost = [name for name, daemon in self._daemons.items() if not _runs(daemon)]
            if lost:
                self._lost = lost[0]
                self._kill_all()
                if not self._over.wait(_PATIENCE_S):
                    print(f"olmorl-launch: {self._end}", file=sys.stderr, flush=True)
                    os._exit(1)
                return

    def _kill_all(self) -> None:
        for process in [child for daemon in self._daemons.values() for child in (*_children(daemon), daemon)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
