"""Landlock: lets this process and its children open only listed files. It works without any privilege."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from olmorl.verifiers.code.inside.isolation.syscalls import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""The number of file rights in each version of the interface. Each right is the next bit."""
_NEWEST = 6
_CONNECT_AND_BIND = 3
_SIGNALS_AND_ABSTRACT_SOCKETS = 3


def version() -> int:
    """The version of the kernel's interface; 0 without Landlock."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    except OSError:
        return 0


def rules(readable: Iterable[str], writable: Iterable[str]) -> int:
    """A descriptor for `restrict`. Raises OSError if the kernel has no Landlock or a file cannot be opened.

    Args:
        readable: files, and folders with everything in them.
        writable: files.
    """
    interface = version()
    handled = (1 << _FILE_RIGHTS.get(interface, 16)) - 1
    network = _CONNECT_AND_BIND if interface >= 4 else 0
    scope = _SIGNALS_AND_ABSTRACT_SOCKETS if interface >= _NEWEST else 0
    size = 24 if interface >= _NEWEST else 16 if interface >= 4 else 8
    ruleset = _call(_CREATE_RULESET, struct.pack("=QQQ", handled, network, scope)[:size], ctypes.c_size_t(size), 0)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in writable:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    return ruleset


def restrict(ruleset: int) -> None:
    """Apply the rules to this process, permanently."""
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib is slow to import
            rights &= ~_READ_DIR
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=QI", rights, place), 0)
    finally:
        os.close(place)


def _call(number: int, *args: object) -> int:
    return call("syscall", number, *args)
