"""Reports the end of a run to `telemetry.on_end`: to a command, or to a webhook."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException, InvalidURL
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from olmorl.config import Config
from olmorl.deploy.view.run_state import finished, metric_lines
from olmorl.errors import OlmoRLError

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
    why = ""
    with suppress(OlmoRLError):  # of a damaged line, which changes no end
        why = finished(settings.run_dir)
    report(settings, "finished" if why else "stopped", code, why or "a stop was asked for")
    return code


def report(settings: Config, outcome: str, exit_code: int, reason: str) -> None:
    """Send the end of a run as JSON. A report that fails is named, and changes nothing else."""
    target = settings.telemetry.on_end
    assert target is not None
    step = 0
    with suppress(OlmoRLError):
        lines = metric_lines(settings.run_dir)
        step = lines[-1]["step"] if lines else 0
    end = {
        "text": f"{settings.run.name} {outcome}: {reason}",
        "run": settings.run.name,
        "directory": str(settings.run_dir.resolve()),
        "host": socket.gethostname(),
        "outcome": outcome,
        "exit_code": exit_code,
        "reason": reason,
        "step": step,
        "steps": settings.schedule.steps,
    }
    is_address = target.startswith(("http://", "https://"))
    try:
        (_post if is_address else _run)(target, json.dumps(end).encode())
    except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
        # An address may hold a secret.
        named = _host(target) if is_address else target
        print(f"olmorl-launch: telemetry.on_end: {named} was not told of the end: {_cause(error)}", file=sys.stderr)


def _host(address: str) -> str:
    with suppress(ValueError):
        return str(urlsplit(address).hostname)
    return "the webhook"


def _cause(error: Exception) -> str:
    if isinstance(error, InvalidURL):
        return "its address has a space, a control character or a port that is no number"
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    if isinstance(error, (subprocess.TimeoutExpired, TimeoutError)):
        return f"it took longer than {DEADLINE_S:g} s"
    return str(error)


def _post(address: str, body: bytes) -> None:
    """Post the body, in a thread: the resolver, or a server that answers a byte at a time, knows no deadline."""
    request = Request(os.path.expandvars(address), body, {"Content-Type": "application/json"})
    answered: Future[None] = Future()

    def post() -> None:
        try:
            urlopen(request, timeout=DEADLINE_S).close()
        except Exception as error:
            answered.set_exception(error)
        else:
            answered.set_result(None)

    Thread(target=post, daemon=True).start()
    answered.result(DEADLINE_S)


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
