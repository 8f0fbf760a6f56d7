"""The processes behind the pool: `python -m olmorl.verifiers.worker CONTROL_FD PARENT_PID SETTINGS`.

The nursery imports what checks need, once, and forks a worker whenever it is sent a socket for one: a fork takes
milliseconds where importing SymPy takes seconds. A worker answers the jobs on its socket until that closes or it is
killed. Nothing here outlives its parent, and nothing that a check prints can reach the protocol.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from olmorl.verifiers import wire

_PR_SET_PDEATHSIG = 1


class Settings(msgspec.Struct, frozen=True):
    """How the nursery and its workers are set up."""

    preload: tuple[str, ...] = ()
    """Functions without arguments, called once in the nursery before it forks."""
    setup: tuple[str, Any] | None = None
    """A task and its arguments, called in each new worker before it takes jobs."""
    memory_mib: int = 1024
    """What a worker may allocate beyond what it holds when it is set up."""


def main(argv: list[str]) -> None:
    """Run the nursery until the pool closes its control socket."""
    control = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    settings = msgspec.json.decode(argv[2], type=Settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in settings.preload:
        resolve(name)()
    gc.collect()
    gc.freeze()
    _tend(control, settings)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _tend(control: socket.socket, settings: Settings) -> None:
    """Fork on request, and report the workers that ended."""
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(wire.notice(wire.Up()))
    while True:
        readable, _, _ = select.select([control, wake], [], [])
        if wake in readable:
            wake.recv(4096)
            _reap(control)
        if control in readable:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            _fork(socket.socket(fileno=descriptors[0]), (control, wake, wakened), settings)


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(wire.notice(wire.Exited(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)))


def _fork(link: socket.socket, inherited: tuple[socket.socket, ...], settings: Settings) -> None:
    nursery = os.getpid()
    if os.fork():
        link.close()
        return
    try:
        die_with_parent(nursery)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in inherited:
            other.close()
        _work(link, settings)
    finally:
        # The nursery's stack lies below: a worker must never return into it.
        os._exit(0)


def _work(link: socket.socket, settings: Settings) -> None:
    """Set up, then answer jobs until the pool closes the socket."""
    if settings.setup is not None:
        task, args = settings.setup
        try:
            resolve(task)(args)
        except BaseException as error:  # it runs the user's import-time code, which may even call sys.exit
            link.sendall(wire.frame(wire.Refused(describe(error))))
            return
    limit_memory(settings.memory_mib)
    link.sendall(wire.frame(wire.Ready(os.getpid())))
    while (body := _receive(link)) is not None:
        link.sendall(_answer(body))


def limit_memory(mib: int) -> None:
    """Let this process allocate `mib` beyond its present address space."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(body: bytes) -> bytes:
    try:
        job = wire.read_job(body)
        return wire.frame(wire.Reply("done", resolve(job.task)(job.args)))
    except MemoryError:
        return wire.frame(wire.Reply("memory", detail="MemoryError"))
    except BaseException as error:  # the boundary of the process: whatever a check raises is reported, and it goes on
        return wire.frame(wire.Reply("raised", detail=describe(error)))


def describe(error: BaseException) -> str:
    """One line for a person, of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:500]


def _receive(link: socket.socket) -> bytes | None:
    header = _exactly(link, wire.HEADER.size)
    return None if header is None else _exactly(link, wire.HEADER.unpack(header)[0])


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = link.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
