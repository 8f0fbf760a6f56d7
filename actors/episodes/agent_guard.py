"""Runs a command, and leaves no process of it behind. A separate program: it imports only the standard library.

    python agent_guard.py COMMAND

The owner holds the other end of standard input. The command ends when it closes: the owner asked for it, or died. The
exit code is that of the command.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def children() -> list[int]:
    """The processes whose parent is this one: all that the command started, once their own parents have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(folder.name))
    return found


def end_all() -> None:
    """Kill the children, and then those that they leave to this process."""
    while left := children():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _hear_stops() -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the owner ends the command
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    command = subprocess.Popen(
        ["/bin/sh", "-c", sys.argv[1]], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_hear_stops
    )
    while (code := command.poll()) is None:
        if sys.stdin in select.select([sys.stdin, ended], [], [])[0]:
            break
        os.read(ended, 4096)
    end_all()
    return 128 - code if code is not None and code < 0 else code or 0


if __name__ == "__main__":
    sys.exit(main())
