"""The fork server and the worker processes: `python -m olmorl.verifiers.pool.worker CONTROL_FD PARENT_PID SETTINGS`.

The fork server imports the modules of the checks once. It forks a worker for each socket it receives. A fork takes
milliseconds; an import of SymPy takes seconds. A worker answers the calls on its socket until the socket closes or the
pool kills it. Each process dies with its parent. The output of a check never reaches the sockets.
"""

from __future__ import annotations

import contextlib
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

from olmorl.parent_death import die_with_parent, hear_stop_signals
from olmorl.verifiers.pool import pool_protocol


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of the fork server and its workers."""

    preload: tuple[str, ...] = ()
    """Functions without arguments, called once in the fork server before the first fork."""
    setup: tuple[str, Any] | None = None
    """A task and its arguments, called in each new worker before its first call."""
    memory_mib: int = 1024
    """The memory that a worker may allocate after its setup."""


def main(argv: list[str]) -> None:
    """Run the fork server until the pool closes the control socket."""
    control = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    settings = msgspec.json.decode(argv[2], type=WorkerSettings)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in settings.preload:
        resolve(name)()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ConnectionError):  # the connection is reset if the pool closes with unread messages
        _serve_forks(control, settings)


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _serve_forks(control: socket.socket, settings: WorkerSettings) -> None:
    """Fork on request, and report each worker that ends."""
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(pool_protocol.notice(pool_protocol.ForkServerReady()))
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
        control.send(
            pool_protocol.notice(pool_protocol.WorkerExited(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
        )


def _fork(link: socket.socket, inherited: tuple[socket.socket, ...], settings: WorkerSettings) -> None:
    fork_server = os.getpid()
    if os.fork():
        link.close()
        return
    try:
        die_with_parent(fork_server)
        hear_stop_signals()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in inherited:
            other.close()
        _work(link, settings)
    finally:
        # The stack of the fork server is below this call, so a worker must never return.
        os._exit(0)


def _work(link: socket.socket, settings: WorkerSettings) -> None:
    """Set up, then answer calls until the pool closes the socket."""
    if settings.setup is not None:
        task, args = settings.setup
        try:
            resolve(task)(args)
        except BaseException as error:  # user code at import may raise anything, including SystemExit
            link.sendall(pool_protocol.frame(pool_protocol.WorkerRefused(describe(error))))
            return
    limit_memory(settings.memory_mib)
    link.sendall(pool_protocol.frame(pool_protocol.WorkerReady(os.getpid())))
    while (body := _receive(link)) is not None:
        link.sendall(_answer(body))


def limit_memory(mib: int) -> None:
    """Limit this process to `mib` more than its present address space."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(body: bytes) -> bytes:
    try:
        job = pool_protocol.read_job(body)
        return pool_protocol.frame(pool_protocol.TaskReply("done", resolve(job.task)(job.args)))
    except MemoryError:
        return pool_protocol.frame(pool_protocol.TaskReply("memory", detail="MemoryError"))
    except BaseException as error:  # any exception of a check is reported, and the worker goes on
        return pool_protocol.frame(pool_protocol.TaskReply("raised", detail=describe(error)))


def describe(error: BaseException) -> str:
    """One line about an error for the user, of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:500]


def _receive(link: socket.socket) -> bytes | None:
    header = _exactly(link, pool_protocol.HEADER.size)
    return None if header is None else _exactly(link, pool_protocol.HEADER.unpack(header)[0])


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
