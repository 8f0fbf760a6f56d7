"""Finds why an engine did not start or died: vLLM's error says "see root cause above", in the log of its processes."""

from __future__ import annotations

import os
import re
import stat

_PREFIX = re.compile(
    r"^(?:\([^()]*pid=\d+\)\s?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?)?(?:\([^()]*pid=\d+\)\s?)?"
)
"""Before each line of an engine's process: its name, the level, the time and the line of the source."""
_FAILED = re.compile(r"(?:WorkerProc|EngineCore) failed to start")
_DIED = re.compile(r"EngineCore encountered a fatal error")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")
_FRAME = "  "
"""The beginning of each line of a traceback between its first line and its error."""
_SOURCE = re.compile(r'^  File "')
_ELSEWHERE = ("see root cause above", "see stack trace for root cause")
_NEXT = ("Traceback", "Process ", "[", "Exception ignored")
"""Beginnings of lines that do not belong to the error before them."""
_MOST_BYTES = 4 << 20
_LENGTH = 600
"""Characters of an error that are passed on."""


class ErrorOutput:
    """Reads the text that this process and its children write to standard error from now on, if that is a file."""

    def __init__(self) -> None:
        status = os.fstat(2)
        self._begin = status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self) -> str:
        """The end of the text since then; empty when standard error is no file."""
        if self._begin is None:
            return ""
        with open("/proc/self/fd/2", "rb") as file:  # noqa: PTH123
            file.seek(max(self._begin, os.fstat(2).st_size - _MOST_BYTES))
            return file.read(_MOST_BYTES).decode(errors="replace")


def root_cause(log: str) -> str:
    """The error of the first process that did not start; empty when the log has none.

    A bare assertion comes with its line of the source.
    """
    lines = _without_prefix(log)
    starts = [number for number, line in enumerate(lines) if _FAILED.search(line)]
    for start in starts:
        if cause := _error_after(lines, start):
            return cause
    return ""


def death_cause(log: str) -> str:
    """The error that ended an engine which had started; empty when the log has none: it was killed."""
    lines = _without_prefix(log)
    deaths = [number for number, line in enumerate(lines) if _DIED.search(line)]
    return _error_after(lines, deaths[-1]) if deaths else ""


def _without_prefix(log: str) -> list[str]:
    return [_PREFIX.sub("", line, count=1) for line in log.splitlines()]


def _error_after(lines: list[str], start: int) -> str:
    """The last error of the chain that is logged from line `start` on: the one that ended the process."""
    cause = ""
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if _FAILED.search(line):
            break
        if not _is_error(lines, number) or any(word in line.lower() for word in _ELSEWHERE):
            continue
        cause = " ".join([line.strip(), *_more(lines, number)])
        if ":" not in line:
            cause = f"{line.strip()}: {_asserted(lines, number)}"
        if not _continues(lines, number):
            break
    return cause[:_LENGTH].strip()


def _is_error(lines: list[str], number: int) -> bool:
    """Whether a traceback ends there with its error, whose name may have any ending, such as OutOfResources."""
    return lines[number - 1].startswith(_FRAME) and _RAISED.match(lines[number]) is not None


def _more(lines: list[str], number: int) -> list[str]:
    """The rest of an error whose text has several lines."""
    rest = []
    for following, line in enumerate(lines[number + 1 :], number + 1):
        if not line.strip() or _is_error(lines, following) or _FAILED.search(line) or line.startswith(_NEXT):
            break
        rest.append(line.strip())
        if len(rest) == 4:
            break
    return rest


def _asserted(lines: list[str], number: int) -> str:
    """The line of the source that raised an error without text."""
    for earlier in range(number - 1, -1, -1):
        if _SOURCE.match(lines[earlier]):
            return lines[earlier + 1].strip()
    return ""


def _continues(lines: list[str], number: int) -> bool:
    """Whether another error of the chain follows."""
    following = " ".join(lines[number + 1 : number + 4])
    return "direct cause of the following" in following or "another exception occurred" in following
