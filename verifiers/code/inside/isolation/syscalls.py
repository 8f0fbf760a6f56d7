"""System calls that Python does not offer. It also runs inside the sandbox, so it imports only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 1 << 19

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args: Any) -> int:
    """Call a function of the C library. Raises OSError when it returns -1."""
    result = int(getattr(_libc, name)(*args))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Enter new namespaces. With CLONE_NEWPID the next child becomes the first process of a new one."""
    call("unshare", flags)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)


def control(option: int, value: int = 0) -> None:
    """Call prctl."""
    call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    control(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hear_signals() -> None:
    """Handle signals as any new program does: the processes of a run leave a stop to their launcher."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose own parent ends."""
    control(_PR_SET_CHILD_SUBREAPER, 1)


def gain_nothing_more() -> None:
    """Forbid new privileges for this process and its children. Landlock and seccomp require this."""
    control(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Forbid other processes of the same user to trace this process or to read its memory."""
    control(_PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Drop every capability, including the capabilities of a user namespace."""
    call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def become(uid: int) -> None:
    """Change from root to user and group `uid`, which own no files."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
