"""Describes one fault and its checks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.chaos.rig import Rig

Check = Callable[[], bool]


def always() -> bool:
    return True


@dataclass
class Strike:
    """One fault and the checks of its effects."""

    victim: str
    noticed: Check | None
    """Whether the service noticed the fault; None if there is nothing to notice."""
    mended: Check
    """Whether the lost part is back."""
    ends_run: bool = False
    """The fault ends the launcher, so the run is resumed."""
    resume: Sequence[str] = ()
    """Arguments of the resume, in addition to `--resume`."""
    back_to: int | None = None
    """The step to which the resume goes back: later ones leave the history."""
    kept: Check = always
    """A condition that must hold after recovery. Its docstring is the message of the violation."""
    at: float = field(default_factory=time.monotonic)
    """When it struck: a fault may have waited for its moment."""
    wall_at: float = field(default_factory=time.time)
    """The same in wall time."""


Fault = Callable[[Rig, Random], Strike]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    assert pid > 0, "the suite's own"
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def given_up(rig: Rig, name: str, pid: int) -> Check:
    """Whether the service knows that this process no longer has this name."""
    return lambda: rig.pids().get(name) != pid


def replaced(rig: Rig, name: str, pid: int) -> Check:
    """Whether another process is there under this name."""
    return lambda: rig.pids().get(name, pid) != pid
