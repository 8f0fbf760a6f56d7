"""A terminal that is gone or halted holds up no run."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def leave() -> None:
    """Write no more to a terminal or a pipe that takes nothing: that would raise OSError during the last checkpoint."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        with suppress(OSError):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)


def write_without_waiting() -> None:
    """From now on a write to a terminal that takes nothing, because it is halted or hangs, raises OSError.

    Its own opening leaves the mode of the terminal to the shell. A write that waits already is freed.
    """
    for descriptor in (1, 2):
        with suppress(OSError):  # no terminal
            own = os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            os.dup2(own, descriptor)
            os.close(own)
