"""Watches the Ray that a run is on.

own daemons   of the Ray that a run starts for itself, on one machine: they live
head          of the cluster that a run joined: it answers
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import psutil

from olmorl.errors import RunEnded

LOOK_S = 0.5
_NAMES = ("gcs_server", "raylet")
_PATIENCE_S = 10.0
"""Time for the run to end in order: it may wait in a call to a Ray that is lost."""


class Below(Protocol):
    """A Ray that may be lost."""

    def lost(self) -> str:
        """Why Ray is lost, and what to do; empty while it lives. Called every `LOOK_S`, and does not block."""

    def end(self) -> None:
        """End the rest of Ray."""


class RayWatch:
    """Ends a run with a named error once its Ray is lost, also when the run hangs in a call to that Ray.

    A thread checks, because a call to a Ray that is half lost waits for a minute.
    """

    def __init__(self, below: Below) -> None:
        self._below = below
        self._lost = ""
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def broken(self) -> bool:
        """Whether Ray is lost."""
        return bool(self._lost)

    async def raise_when_lost(self) -> None:
        """Wait until Ray is lost.

        Raises:
            RunEnded: Ray is lost, and with it all that it knew.
        """
        while True:
            if self._lost:
                raise RunEnded(self._lost)
            await asyncio.sleep(LOOK_S)

    def release(self) -> None:
        """Ray may end from now on. If it is lost already, this process still has to end in time."""
        if not self._lost:
            self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if (lost := self._below.lost()) and not self._over.is_set():
                self._lost = f"{lost}; --resume goes on from the last checkpoint"
                self._below.end()
                time.sleep(_PATIENCE_S)
                print(f"olmorl-launch: {self._lost}", file=sys.stderr, flush=True)
                os._exit(1)


class OwnDaemons:
    """When one daemon dies, the other daemons and all their children end."""

    def __init__(self) -> None:
        """Find the daemons among the children of this process."""
        self._daemons = {child.name(): child for child in _children(psutil.Process()) if child.name() in _NAMES}

    def lost(self) -> str:
        return "".join(
            [f"{name} of the run's own Ray died" for name, one in self._daemons.items() if not _runs(one)][:1]
        )

    def end(self) -> None:
        for process in [child for daemon in self._daemons.values() for child in (*_children(daemon), daemon)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Head:
    """The head may be silent for less time than Ray itself would wait: running processes go on without it.

    Args:
        ask: a call that the head has to answer; may block or raise.
        patience_s: after so long without an answer Ray would end this process, and not say why.
    """

    def __init__(self, address: str, ask: Callable[[], object], patience_s: float) -> None:
        self._address = address
        self._ask = ask
        self._looks_left = self._looks = int(0.75 * patience_s / LOOK_S)
        threading.Thread(target=self._listen, daemon=True).start()

    def lost(self) -> str:
        # Checks are counted, not seconds: a stopped launcher does not listen.
        self._looks_left -= 1
        if self._looks_left > 0:
            return ""
        return (
            f"Ray's head at {self._address} has not answered for {self._looks * LOOK_S:.0f} s: start Ray on it and on "
            "all hosts again"
        )

    def end(self) -> None:
        """Do nothing: processes without a head end by themselves, or are taken over when the head comes back."""

    def _listen(self) -> None:
        while True:
            # After any error: a thread that ended would look like a lost head.
            with suppress(Exception):
                self._ask()
                self._looks_left = self._looks
            time.sleep(LOOK_S)


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
