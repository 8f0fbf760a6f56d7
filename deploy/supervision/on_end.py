"""Reports the end of a run to `telemetry.on_end`: to a command, or to a webhook."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from olmorl.config import Config
from olmorl.deploy.view.run_state import finished, metric_lines

DEADLINE_S = 10.0


def reported(settings: Config, run: Callable[[], int]) -> int:
    """Call `run`, and report how it ended before its exit code is returned or its error goes on."""
    if settings.telemetry.on_end is None:
        return run()
    try:
        code = run()
    except BaseException as error:
        was_asked = isinstance(error, KeyboardInterrupt) or getattr(error, "was_asked", False)
        report(
            settings, "stopped" if was_asked else "failed", getattr(error, "exit_code", 1), str(error) or repr(error)
        )
        raise
    why = finished(settings.run_dir)
    report(settings, "finished" if why else "stopped", code, why or "a stop was asked for")
    return code


def report(settings: Config, outcome: str, exit_code: int, reason: str) -> None:
    """Send the end of a run as JSON. A report that fails is named, and changes nothing else."""
    target = settings.telemetry.on_end
    assert target is not None
    lines = metric_lines(settings.run_dir)
    end = {
        "text": f"{settings.run.name} {outcome}: {reason}",
        "run": settings.run.name,
        "directory": str(settings.run_dir.resolve()),
        "host": socket.gethostname(),
        "outcome": outcome,
        "exit_code": exit_code,
        "reason": reason,
        "step": lines[-1]["step"] if lines else 0,
        "steps": settings.schedule.steps,
    }
    try:
        (_post if target.startswith(("http://", "https://")) else _run)(target, json.dumps(end).encode())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # An address may hold a secret.
        named = urlsplit(target).hostname if target.startswith("http") else target
        print(f"olmorl-launch: telemetry.on_end: {named} was not told of the end: {_cause(error)}", file=sys.stderr)


def _cause(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {DEADLINE_S:g} s"
    return str(error)


def _post(address: str, body: bytes) -> None:
    request = Request(os.path.expandvars(address), body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=DEADLINE_S):
        pass


def _run(command: str, body: bytes) -> None:
    process: subprocess.Popen[Any]
    with subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            process.communicate(body, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
