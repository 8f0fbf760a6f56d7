"""The fork server and the worker processes: `python -m olmorl.verifiers.pool.worker CONTROL_FD PARENT_PID SETTINGS`.

The fork server imports the modules of the checks once. It forks a worker for each socket it receives. A fork takes
milliseconds; an import of SymPy takes seconds. A worker answers the calls on its socket until the socket closes or the
pool kills it. Each process dies with its parent. The output of a check never reaches the sockets.

A check may start processes. They cannot answer for the worker, and end with it: orphans become children of the fork
server, which kills them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import msgspec
import psutil

from olmorl.parent_death import become_subreaper, die_with_parent, hear_stop_signals
from olmorl.verifiers.pool import pool_protocol

OWNER_DIED = signal.SIGUSR1
"""The signal that tells the fork server that the pool's process ended."""
_GENERATIONS = 8
"""The longest chain of processes, each left behind by the one before, that is followed to its end."""


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of the fork server and its workers."""

    preload: tuple[str, ...] = ()
    """Functions without arguments, called once in the fork server before the first fork."""
    setup: tuple[str, Any] | None = None
    """A task and its arguments, called in each new worker before its first call."""
    memory_mib: int = 1024
    """The memory that a worker may allocate after its setup."""
    shared: tuple[str, Any] | None = None
    """A task and its arguments, called in the fork server too. If it fails, so does the setup, which can say why."""


def main(argv: list[str]) -> None:
    """Run the fork server until the pool closes the control socket."""
    control = socket.socket(fileno=int(argv[0]))
    signal.signal(OWNER_DIED, _end)
    die_with_parent(int(argv[1]), OWNER_DIED)
    become_subreaper()
    settings = msgspec.json.decode(argv[2], type=WorkerSettings)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in settings.preload:
        resolve(name)()
    if settings.shared is not None:
        task, args = settings.shared
        with contextlib.suppress(Exception):
            resolve(task)(args)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ConnectionError):  # the connection is reset if the pool closes with unread messages
        _serve_forks(control, settings)
    _end()


def _end(*_: object) -> None:
    """End this process and all its descendants."""
    _kill_children(frozenset())
    os._exit(0)


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _kill_children(spared: Set[int]) -> None:
    """Kill all children of this process but the spared ones. Their own children become this process's, and follow."""
    for _ in range(_GENERATIONS):
        children = [child for child in psutil.Process().children() if child.pid not in spared]
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if not children:
            return
        psutil.wait_procs(children, timeout=1.0)


def _serve_forks(control: socket.socket, settings: WorkerSettings) -> None:
    """Fork on request, and report each worker that ends."""
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(pool_protocol.notice(pool_protocol.ForkServerReady()))
    workers: set[int] = set()
    while True:
        readable, _, _ = select.select([control, wake], [], [])
        if wake in readable:
            wake.recv(4096)
            _reap(control, workers)
        if control in readable:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                signal.set_wakeup_fd(-1)
                return
            link = socket.socket(fileno=descriptors[0])
            link.set_inheritable(False)
            workers.add(_fork(link, (control, wake, wakened), settings))


def _reap(control: socket.socket, workers: set[int]) -> None:
    """Report the workers that ended, and kill the processes that they left behind."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid not in workers:
            continue
        workers.remove(pid)
        control.send(
            pool_protocol.notice(pool_protocol.WorkerExited(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
        )
    _kill_children(workers)


def _fork(link: socket.socket, inherited: tuple[socket.socket, ...], settings: WorkerSettings) -> int:
    """Fork a worker; returns its pid."""
    fork_server = os.getpid()
    if pid := os.fork():
        link.close()
        return pid
    try:
        die_with_parent(fork_server)
        hear_stop_signals()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(OWNER_DIED, signal.SIG_DFL)
        os.register_at_fork(after_in_child=link.close)  # a child of a check must not read or answer calls
        for other in inherited:
            other.close()
        _work(link, settings)
    finally:
        # The stack of the fork server is below this call, so a worker must never return.
        os._exit(0)


def _work(link: socket.socket, settings: WorkerSettings) -> None:
    """Set up, then answer calls until the pool closes the socket."""
    worker, terminal = os.getpid(), os.dup(2)
    if settings.setup is not None:
        task, args = settings.setup
        try:
            resolve(task)(args)
        except BaseException as error:  # user code at import may raise anything, including SystemExit
            _send(link, pool_protocol.START, pool_protocol.WorkerRefused(describe(error)))
            return
    limit_memory(settings.memory_mib)
    _send(link, pool_protocol.START, pool_protocol.WorkerReady(worker))
    while (call := _receive(link)) is not None:
        _open_output(terminal)
        number, body = call
        answer = _answer(body)
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this check must not ring in a later one
        if os.getpid() != worker:  # the check forked, and returned twice
            return
        link.sendall(pool_protocol.frame(number, answer))


def _open_output(terminal: int) -> None:
    """Open the standard output and error again, if the check before closed them."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(terminal, descriptor)
        if getattr(getattr(sys, name), "closed", False):
            raw = io.FileIO(descriptor, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))


def _send(link: socket.socket, number: int, message: Any) -> None:
    link.sendall(pool_protocol.frame(number, pool_protocol.encode(message)))


def limit_memory(mib: int) -> None:
    """Limit this process to `mib` more than its present address space."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(body: bytes) -> bytes:
    try:
        job = pool_protocol.read_job(body)
        return pool_protocol.encode(pool_protocol.TaskReply("done", resolve(job.task)(job.args)))
    except MemoryError:
        return pool_protocol.encode(pool_protocol.TaskReply("memory", detail="MemoryError"))
    except BaseException as error:  # any exception of a check is reported, and the worker goes on
        return pool_protocol.encode(pool_protocol.TaskReply("raised", detail=describe(error)))


def describe(error: BaseException) -> str:
    """One line about an error for the user, of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:500]


def _receive(link: socket.socket) -> tuple[int, bytes] | None:
    """The number and the body of the next call; None at the end."""
    header = _exactly(link, pool_protocol.HEADER.size)
    if header is None:
        return None
    size, number = pool_protocol.HEADER.unpack(header)
    body = _exactly(link, size)
    return None if body is None else (number, body)


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
