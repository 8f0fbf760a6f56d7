"""What one fault does to a run."""

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
    """What one fault did."""

    victim: str
    noticed: Check | None
    """Whether the service knows; None where there is nothing for it to know."""
    mended: Check
    """Whether what was lost is there again."""
    ends_run: bool = False
    """The launcher is gone or will be: the run is resumed."""
    resume: Sequence[str] = ()
    """With these arguments beside `--resume`."""
    kept: Check = always
    """What has to hold when all is mended; its docstring says what does not if it does not."""
    at: float = field(default_factory=time.monotonic)
    """When it struck: a fault may have waited for its moment."""
    wall_at: float = field(default_factory=time.time)
    """The same by the clock on the wall."""


Fault = Callable[[Rig, Random], Strike]


def send(pid: int, number: signal.Signals) -> None:
    """To a process that may have ended meanwhile."""
    assert pid > 0, "the suite's own"
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def given_up(rig: Rig, name: str, pid: int) -> Check:
    """Whether the service knows that this process is no more what has this name."""
    return lambda: rig.pids().get(name) != pid


def replaced(rig: Rig, name: str, pid: int) -> Check:
    """Whether another process is there under this name."""
    return lambda: rig.pids().get(name, pid) != pid
