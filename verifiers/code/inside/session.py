"""The session process. It forks the interpreter of an episode, sends it the calls in turn, and holds their limits.

    fork server ──fork──> session process: limits and output ──fork──> interpreter process: the state of the episode

Whatever ends the session process ends the interpreter. At a limit it ends itself.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import socket
import time
from typing import Any

from olmorl.verifiers.code.inside import interpreter, trial
from olmorl.verifiers.code.inside.bridge.peer import Gone, MessageLink
from olmorl.verifiers.code.inside.isolation import syscalls
from olmorl.verifiers.code.inside.isolation.restrictions import Restrictions, SandboxSetup
from olmorl.verifiers.code.inside.output import Output
from olmorl.verifiers.code.inside.pipes import CHUNK

_CLOSED = "closed"
_LOOK_S = 0.1
"""Seconds between two looks at the processor time of the interpreter."""
_CPU_OF_PROCESS = 2
"""In the last bits of a clock: the processor time of the process in the bits before, as `clock_getcpuclockid` says."""
_END_S = 2.0
"""Longest wait for the end of an interpreter that has closed its socket."""


def run_session(end: socket.socket, server: socket.socket, restrictions: Restrictions, setup: SandboxSetup) -> None:
    """Run the calls that come on `end` until it closes, or the interpreter ends. Never returns.

    Args:
        server: leads to the fork server, which may answer for the threads of the interpreter.
    """
    syscalls.die_with_parent()
    restrictions.enter_namespaces()
    if setup.namespaces:
        os.chdir("/tmp")
    printed, streams = os.pipe()
    ours, theirs = socket.socketpair()
    restrictions.isolate_next_child()
    process = os.fork()
    if process == 0:
        nothing = os.open(os.devnull, os.O_RDONLY)
        interpreter.run(trial.become_program(theirs, server, (nothing, streams, streams), restrictions))
    theirs.close()
    server.close()
    os.close(streams)
    restrictions.restrict()
    link, session = MessageLink(end), _Session(process, ours, printed)
    try:
        while True:
            report = session.run(json.loads(link.receive()))
            link.send(json.dumps(report).encode())
            if report["ended"] or session.watch(end):
                break
    except Gone:
        pass
    os._exit(0)


class _Session:
    """Watches one interpreter. A call has its limits together with the threads that it leaves behind."""

    def __init__(self, process: int, calls: socket.socket, printed: int) -> None:
        self._process = process
        self._calls = calls
        self._calls.settimeout(_END_S)
        self._printed = printed
        os.set_blocking(printed, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._output = Output()
        self._cpu_until = 0.0

    def run(self, call: dict[str, Any]) -> dict[str, Any]:
        """Run one call. In the report `ended` says why there is no interpreter any more; empty: there still is."""
        self._cpu_until = self._cpu_s() + call["cpu_s"]
        ended, done = "", b""
        try:
            MessageLink(self._calls).send(call["code"].encode("utf-8", "surrogatepass"))
            ended = self.watch(self._calls, call["wall_s"])
            if not ended:
                done = self._calls.recv(1)
        except (Gone, OSError):
            pass
        if not done and ended in ("", _CLOSED):
            ended = self._how_it_ended()
        self._collect()
        output, self._output = self._output.text(), Output()
        return {"output": output, "raised": done == interpreter.RAISED, "ended": ended}

    def watch(self, awaited: socket.socket, wall_s: float = float("inf")) -> str:
        """Collect what is printed until the socket can be read. Returns what came before that, if anything: `cpu` or
        `wall` for a limit, `closed` for the end of the output.
        """
        poll, until = select.poll(), time.monotonic() + wall_s
        poll.register(awaited, select.POLLIN)
        poll.register(self._printed, select.POLLIN)
        while time.monotonic() < until:
            ready = dict(poll.poll(_LOOK_S * 1000))
            if self._printed in ready and not self._collect():
                return _CLOSED
            if awaited.fileno() in ready:
                return ""
            if self._cpu_s() > self._cpu_until:
                return "cpu"
        return "wall"

    def _collect(self) -> bool:
        """Take what was printed, which a pipe holds in one piece. Returns whether there may be more."""
        try:
            part = os.read(self._printed, CHUNK)
        except BlockingIOError:
            return True
        self._output.add(self._decoder.decode(part))
        return bool(part)

    def _cpu_s(self) -> float:
        """Processor seconds of the interpreter with all its threads."""
        return time.clock_gettime(~self._process << 3 | _CPU_OF_PROCESS)

    def _how_it_ended(self) -> str:
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            found = os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return f"{'status' if found.si_code == os.CLD_EXITED else 'signal'} {found.si_status}"
            time.sleep(_END_S / 100)
        return _CLOSED
