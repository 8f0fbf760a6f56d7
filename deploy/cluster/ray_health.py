"""Watches the Ray that a run is on.

own daemons   of the Ray that a run starts for itself, on one machine: they live, and answer
head          of the cluster that a run joined: it answers
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import grpc
import psutil

from olmorl.errors import RunEnded

LOOK_S = 0.5
_ANSWER_S = 5.0
_PATIENCE_S = 10.0
"""Time for the run to end in order: it may wait in a call to a Ray that is lost."""


LastAct = Callable[[str], int]
"""Gets the cause for which this process ends, and returns its exit code."""


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
        self._last_act: LastAct = lambda cause: 1
        self._lost = ""
        self._hold_s = 0.0
        self._let_go = threading.Event()
        self._over = threading.Event()
        self.broken = False
        """Whether Ray is lost."""
        threading.Thread(target=self._watch, daemon=True).start()

    def hold(self, longest_s: float) -> None:
        """A stop has begun: the last checkpoint may not need what is lost. Until `let_go` it is given `longest_s`."""
        self._hold_s = longest_s

    def let_go(self) -> None:
        """The last checkpoint is complete."""
        self._let_go.set()

    async def raise_when_lost(self, last_act: LastAct) -> None:
        """Wait until Ray is lost.

        Args:
            last_act: called before this process is ended because the run has not ended in time.

        Raises:
            RunEnded: Ray is lost, and with it all that it knew.
        """
        self._last_act = last_act
        while True:
            if self._lost:
                raise RunEnded(self._lost)
            await asyncio.sleep(LOOK_S)

    def release(self) -> None:
        """Ray may end from now on. If it is lost already, this process still has to end in time."""
        self.let_go()
        if not self.broken:
            self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if (lost := self._below.lost()) and not self._over.is_set():
                self.broken = True
                self._let_go.wait(self._hold_s)
                self._lost = f"{lost}; --resume goes on from the last checkpoint"
                self._below.end()
                time.sleep(_PATIENCE_S)
                exit_code = self._last_act(self._lost)
                with suppress(OSError):  # a terminal that is gone
                    print(f"olmorl-launch: {self._lost}", file=sys.stderr, flush=True)
                os._exit(exit_code)


class Ping:
    """Asks repeatedly, in a thread. Questions are counted, not seconds: a stopped launcher does not ask."""

    def __init__(self, ask: Callable[[], object], patience_s: float) -> None:
        """`ask` may block or raise when there is no answer."""
        self._ask = ask
        self._looks_left = self._looks = int(patience_s / LOOK_S)
        threading.Thread(target=self._listen, daemon=True).start()

    def silent_s(self) -> float:
        """How long there has been no answer, once that is too long; else 0. Called every `LOOK_S`."""
        self._looks_left -= 1
        return 0.0 if self._looks_left > 0 else self._looks * LOOK_S

    def _listen(self) -> None:
        while True:
            # After any error: a thread that ended would look like a lost process.
            with suppress(Exception):
                self._ask()
                self._looks_left = self._looks
            time.sleep(LOOK_S)


class OwnDaemons:
    """When one daemon dies or hangs, the other daemons and all their children end.

    Args:
        asks: a question that each daemon has to answer, by its name.
        patience_s: the longest silence of a daemon.
    """

    def __init__(self, asks: Mapping[str, Callable[[], object]], patience_s: float) -> None:
        """Find the daemons among the children of this process."""
        self._daemons = {child.name(): child for child in _children(psutil.Process()) if child.name() in asks}
        self._pings = {name: Ping(ask, patience_s) for name, ask in asks.items()}

    def lost(self) -> str:
        for name, daemon in self._daemons.items():
            if not _runs(daemon):
                return f"{name} of the run's own Ray died"
        for name, ping in self._pings.items():
            if silent_s := ping.silent_s():
                return f"{name} of the run's own Ray has not answered for {silent_s:g} s"
        return ""

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
        self._ping = Ping(ask, 0.75 * patience_s)

    def lost(self) -> str:
        if not (silent_s := self._ping.silent_s()):
            return ""
        return (
            f"Ray's head at {self._address} has not answered for {silent_s:.0f} s: start Ray on it and on all hosts "
            "again"
        )

    def end(self) -> None:
        """Do nothing: processes without a head end by themselves, or are taken over when the head comes back."""


def check_health(address: str) -> None:
    """Ask a daemon for its health, as gRPC's own protocol does. Raises RpcError without an answer."""
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=_ANSWER_S)


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
