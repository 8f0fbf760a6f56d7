"""The test process. It forks the program process, runs one test against it, and reports the result.

    fork server ──fork──> test process: reads the test, judges, reports ──fork──> program process: holds the program

The program process is forked before the test is read, so its memory contains nothing of the test.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from olmorl.verifiers.code.inside import program
from olmorl.verifiers.code.inside.bridge.expected_objects import ExpectedObjects
from olmorl.verifiers.code.inside.bridge.peer import Gone, MessageLink
from olmorl.verifiers.code.inside.isolation import syscalls
from olmorl.verifiers.code.inside.isolation.restrictions import Restrictions, SandboxSetup
from olmorl.verifiers.code.inside.pipes import Pipes
from olmorl.verifiers.code.inside.testing import runner

KEPT_FROM = 200
"""Descriptors from this number on are open folders of Python's own files."""


def run_test(
    end: socket.socket, server: socket.socket, role: str, restrictions: Restrictions, setup: SandboxSetup
) -> None:
    """Run one test in this process, report, and exit. `role` is `assert` or `stdio`.

    Args:
        server: leads to the fork server, which may answer for the threads of the program.
    """
    syscalls.die_with_parent()
    restrictions.enter_namespaces()
    pipes = Pipes(setup.namespaces) if role == "stdio" else None
    ours, theirs = socket.socketpair()
    restrictions.isolate_next_child()
    process = os.fork()
    if process == 0:
        streams = pipes.theirs if pipes is not None else (os.open(os.devnull, os.O_RDWR),) * 3
        program.run(become_program(theirs, server, streams, restrictions), role)
    theirs.close()
    server.close()
    restrictions.restrict()
    report = MessageLink(end)
    try:
        text, given, altered = report.receive(), report.receive(), json.loads(report.receive())
        trial, expected = Trial(process, MessageLink(ours), setup), ExpectedObjects(*altered)
        if pipes is not None:
            result = trial.run_script(text, given, pipes)
        else:
            result = trial.run_assertions(text, given, expected)
    except MemoryError:
        result = {"outcome": "memory", "detail": "the test exceeded its memory limit"}
    # Text of the program may contain lone surrogates, which strict JSON readers refuse.
    report.send(json.dumps(result, ensure_ascii=False).encode("utf-8", "replace"))
    os._exit(0)


def become_program(
    end: socket.socket, server: socket.socket, streams: Sequence[int], restrictions: Restrictions
) -> socket.socket:
    """Restrict this process, and close all descriptors but the standard streams and `end`, which is returned."""
    syscalls.die_with_parent()
    syscalls.hear_signals()
    if (listener := restrictions.ask_for_threads()) is not None:
        socket.send_fds(server, [b"threads"], [listener])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.dup2(end.detach(), 3)
    os.closerange(4, KEPT_FROM)
    restrictions.restrict()
    return socket.socket(fileno=3)


class Trial:
    """The program process ends with its test, and its exit status is read exactly once."""

    def __init__(self, program: int, link: MessageLink, setup: SandboxSetup) -> None:
        self._program = program
        self._link = link
        self._setup = setup

    def run_assertions(self, text: bytes, test: bytes, expected: ExpectedObjects) -> dict[str, Any]:
        limit = self._setup.output_kib << 10
        outcome, detail = runner.judge(self._link, text, test.decode("utf-8", "surrogatepass"), expected, limit)
        if outcome == "gone":
            # After an invalid message the program may still run. The kernel kills it when this process ends.
            left = "failed", "the program exited before the test was over"
            outcome, detail = (self._how_it_ended() or left) if self._has_ended() else ("failed", detail)
        return {"outcome": outcome, "detail": detail, "expected": sorted(expected.equal)}

    def run_script(self, text: bytes, given: bytes, pipes: Pipes) -> dict[str, Any]:
        """Collect the output of the program. The actor compares it with the expected output."""
        try:
            pipes.give(given)
        except OSError:
            return {"outcome": "label", "detail": f"the input is larger than {self._setup.disk_mib} MiB"}
        pipes.close_theirs()
        try:
            self._link.send(text)
        except Gone as error:
            return {"outcome": "failed", "detail": str(error)}
        output, errors, cut = pipes.read(self._setup.output_kib << 10)
        if cut:  # the kernel kills the program when this process ends
            return {"outcome": "output", "detail": f"the program printed more than {self._setup.output_kib} KiB"}
        said = " ".join(errors.decode("utf-8", "replace").split())[-300:]
        outcome, detail = self._how_it_ended(said) or ("printed", "")
        return {"outcome": outcome, "detail": detail, "output": base64.b64encode(output).decode()}

    def _has_ended(self) -> bool:
        for _ in range(50):
            if os.waitid(os.P_PID, self._program, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            time.sleep(0.01)
        return False

    def _how_it_ended(self, errors: str = "") -> tuple[str, str] | None:
        """Wait for the program process. Returns the cause of its end, or None if it exited with success."""
        _, status, usage = os.wait4(self._program, 0)
        if os.WIFSIGNALED(status):
            number, used_s = os.WTERMSIG(status), usage.ru_utime + usage.ru_stime
            # The kernel counts clock ticks against the limit. That count can be far above the exact time used.
            if number == signal.SIGKILL and used_s > 0.5 * max(1, round(self._setup.cpu_s)):
                return "time", "the program exceeded its CPU time limit"
            return "failed", f"the program was ended by signal {number}"
        code = os.WEXITSTATUS(status)
        if code and "MemoryError" in errors:
            return "memory", "the program exceeded its memory limit"
        return ("failed", f"the program exited with status {code}: {errors}") if code else None
