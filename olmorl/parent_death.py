"""Child processes that end together with their parent, and not by a signal that is meant for the launcher.

A scheduler, systemd or a closed terminal may signal every process of a run. Only the launcher acts on it: it stops the
run, and the last checkpoint needs the other processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask the launcher to stop the run."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def leave_stop_to_launcher() -> None:
    """Ignore the signals that ask for a stop, in every thread. Works in any thread, as `signal.signal` does not."""
    handle = ctypes.CDLL(None).signal
    handle.argtypes, handle.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    for number in STOP_SIGNALS:
        handle(number, int(signal.SIG_IGN))


def hear_stop_signals() -> None:
    """Handle the signals as any new program does: user code may send them to its own processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent(parent: int, death: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `death` when the thread of `parent` that started this process ends. Leaves stops to it."""
    leave_stop_to_launcher()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death)
    if os.getppid() != parent:
        os._exit(0)


def asked_at_death(number: int) -> Callable[[], None]:
    """Returns a call for a new process: it gets the signal when the thread that started it ends."""
    prctl = ctypes.CDLL(None).prctl
    return partial(prctl, _PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Make this process the parent of all descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start_child(
    program: str, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the module `program` as a child with a socket to it; returns at once.

    The child gets the number of its end of the socket and the id of this process as arguments, and calls
    `die_with_parent`. The calling thread has to live as long as the child.
    """
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", program, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **(environment or {}), "PYTHONPATH": path, **threads},
        )
    return process, ours


def end_child(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Wait for the end of a child that was told to end. After `wait_s` seconds it is killed."""
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
