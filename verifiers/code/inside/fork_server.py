"""The long-lived process in the sandbox. It imports Python's modules once and forks the processes of each test.

    sandbox.py -> fork server   the role of a test or `session`, with a socket that the test or session process gets
    fork server -> sandbox.py   StartReport once, then one ProcessEnd per test or session

It never sees a program or a test, because those are sent on the socket of the test process.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

from olmorl.verifiers.code.inside import session, trial
from olmorl.verifiers.code.inside.bridge import standard_library
from olmorl.verifiers.code.inside.bridge.codec import Codec
from olmorl.verifiers.code.inside.bridge.peer import MessageLink, Peer
from olmorl.verifiers.code.inside.bridge.program_handles import ProgramHandles
from olmorl.verifiers.code.inside.bridge.tester_handles import TesterHandles
from olmorl.verifiers.code.inside.isolation import syscalls
from olmorl.verifiers.code.inside.isolation.restrictions import PROCESSES, Restrictions, SandboxSetup, longest_s
from olmorl.verifiers.code.inside.isolation.seccomp import Threads
from olmorl.verifiers.code.inside.testing.runner import TestRun
from olmorl.verifiers.code.inside.trial import KEPT_FROM

PRELOADED = (
    *standard_library.MODULES, "array", "asyncio", "dataclasses", "enum", "queue", "threading", "time", "abc", "io",
)  # fmt: skip
"""Modules that are imported before the fork, so that no test has to import them."""
WARM_RUNS = 30
"""After so many runs Python has specialised the bytecode of a function."""


def main(control: int, settings: dict[str, Any]) -> None:
    """Run tests until the control socket closes."""
    link = socket.socket(fileno=control)
    setup = SandboxSetup(**settings)
    try:
        restrictions = Restrictions(setup)
        _load(setup)
        _warm()
        syscalls.adopt_orphans()
        if setup.uid is not None:
            _open_folders()
        # The search fills the import cache while the folders of the standard library can still be listed.
        importlib.util.find_spec("no_module_has_this_name")
        restrictions.restrict_fork_server()
    except Exception as error:  # any error is reported, and the sandbox tries another tier
        link.send(json.dumps({"refused": f"{type(error).__name__}: {error}"[:1000]}).encode())
        return
    syscalls.die_with_parent()
    # The parent reads standard error only during the start, so the streams close here.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    gc.collect()
    gc.freeze()
    link.send(b'{"ready": true}')
    while True:
        role, descriptors, _, _ = socket.recv_fds(link, 64, 1)
        if not role:
            return
        link.send(json.dumps(_run(link, role.decode(), descriptors[0], restrictions, setup)).encode())


def _load(setup: SandboxSetup) -> None:
    """Import the modules that programs use, so that each fork has them."""
    for name in PRELOADED:
        importlib.import_module(name)
    if setup.packages:
        # A fork loses the threads of a library, so these libraries must start none.
        os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        sys.path.append(setup.packages_at)
        for name in setup.packages:
            importlib.import_module(name)
        sys.path.remove(setup.packages_at)
    os.environ.clear()
    # A fixed seed makes programs with random numbers repeatable.
    random.seed(0)


def _warm() -> None:
    """Specialise the code that every test runs. Else each fork does that, and copies the memory pages of the code."""
    ours, theirs = socket.socketpair()
    tester = Peer(MessageLink(ours), Codec(TesterHandles(), 0), lambda verb, values: None)
    program = Peer(MessageLink(theirs), Codec(ProgramHandles(tester.ask), 1), lambda verb, values: values[0])
    answering = threading.Thread(target=program.serve)
    answering.start()
    for _ in range(WARM_RUNS):
        TestRun("assert add([1, 2], 'a') == 3", tester)
        tester.ask("call", "add", 3)
    ours.close()
    answering.join()


def _open_folders() -> None:
    """Open Python's folders and use the descriptors as paths: another user may lack access to the parent folders."""
    held: dict[str, str] = {}
    modules = [module.__path__ for module in list(sys.modules.values()) if hasattr(module, "__path__")]
    for paths in (sys.path, *modules):
        for index, path in enumerate(paths):
            if path not in held and os.path.isdir(path):  # noqa: PTH112 - pathlib is slow to import
                descriptor = os.open(path, os.O_PATH)
                os.dup2(descriptor, KEPT_FROM + len(held))
                os.close(descriptor)
                held[path] = f"/proc/self/fd/{KEPT_FROM + len(held)}"
            paths[index] = held.get(path, path)
    sys.path_importer_cache.clear()


def _run(link: socket.socket, role: str, end: int, restrictions: Restrictions, setup: SandboxSetup) -> dict[str, Any]:
    started = time.monotonic()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = os.fork()
    if process == 0:
        try:
            link.close()
            ours.close()
            if role == "session":
                session.run_session(socket.socket(fileno=end), theirs, restrictions, setup)
            trial.run_test(socket.socket(fileno=end), theirs, role, restrictions, setup)
        finally:
            os._exit(1)
    os.close(end)
    theirs.close()
    with ours:
        in_time = _wait(link, process, ours, started + longest_s(setup.cpu_s))
    if not in_time:
        os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    return {
        "in_time": in_time,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "cpu_s": usage.ru_utime + usage.ru_stime + _reap_orphans(),
        "seconds": time.monotonic() - started,
    }


def _wait(link: socket.socket, process: int, program: socket.socket, until: float) -> bool:
    """Whether the process ends in time. If the parent closes the control socket first, this process exits.

    Args:
        program: brings the descriptor on which the program asks for threads, if it asks.
    """
    watched, threads = os.pidfd_open(process), None
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(link, select.POLLHUP)
        poll.register(program, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            events = dict(poll.poll(left * 1000))
            if link.fileno() in events:
                os._exit(0)
            if watched in events:
                return True
            if program.fileno() in events:
                poll.unregister(program)
                threads = _threads(program)
                if threads is not None:
                    poll.register(threads, select.POLLIN)
            elif threads is not None and events:
                if events[threads.fileno()] & select.POLLIN:
                    threads.answer()
                else:  # the program has ended
                    poll.unregister(threads)
        return False
    finally:
        os.close(watched)
        if threads is not None:
            threads.close()


def _threads(program: socket.socket) -> Threads | None:
    _, descriptors, _, _ = socket.recv_fds(program, 16, 1)
    return Threads(descriptors[0], PROCESSES) if descriptors else None


def _reap_orphans() -> float:
    """Wait for the orphans of the test process, which the kernel killed. Returns their CPU seconds."""
    spent = 0.0
    try:
        while True:
            _, _, usage = os.wait4(-1, 0)
            spent += usage.ru_utime + usage.ru_stime
    except ChildProcessError:
        return spent
