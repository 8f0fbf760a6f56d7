"""Decides whether a failed start of an engine, a model or a learner rank would fail again.

A library raises the same error at every start for a broken file or an impossible setting. Errors that depend on other
processes and hosts (memory, ports, connections, deadlines) may not occur at the next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from olmorl.errors import OlmoRLError, StartError

_FOR_GOOD = {
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "EOFError",
    "FileNotFoundError",
    "ImportError",
    "IndexError",
    "IsADirectoryError",
    "JSONDecodeError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "NotADirectoryError",
    "NotImplementedError",
    "OSError",
    "PermissionError",
    "SafetensorError",
    "SyntaxError",
    "TypeError",
    "UnicodeDecodeError",
    "UnpicklingError",
    "ValidationError",
    "ValueError",
    "ZeroDivisionError",
}
"""Exceptions caused by the input of a process. RuntimeError is left out: libraries raise it for every cause."""
_FOR_NOW = re.compile(
    r"memory on device|out of memory|(?:cannot|can't|unable to|failed to) allocate|MemoryError"
    r"|timed? ?out|timeout|temporar|try again|connection|connect|unreachable|broken pipe|address already in use"
    r"|server (?:error|socket)|too many (?:open files|requests)|NCCL|gloo|busy|stale file|input/output error"
    r"|no space left|not enough (?:space|memory)|resource exhausted|killed|signal",
    re.IGNORECASE,
)
"""Words of errors that other processes and hosts cause."""
_RAISED = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception))\b")
_AT_A_START = re.compile(rf"(?:failed|did not start|cannot be set up): {_RAISED.pattern}")
"""Text of the end of a process that raised an error. A process that ended without this text may have been killed."""
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


def describe(error: BaseException) -> str:
    """The name and the message of the error, in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def would_repeat(cause: str) -> bool:
    """Whether another start would raise this error again. `cause` is a text of `describe`."""
    raised = _RAISED.match(cause)
    return raised is not None and raised[1] in _FOR_GOOD and not _FOR_NOW.search(cause)


def same(cause: str, before: str) -> bool:
    """Whether two ends of a process name the same error, but for numbers. False for an error that may not repeat."""
    if _AT_A_START.search(cause) is None or _FOR_NOW.search(cause):
        return False
    return _VARYING.sub("#", cause) == _VARYING.sub("#", before)


@contextmanager
def building(what: str) -> Iterator[None]:
    """Turn a library's error into a StartError if another start would raise it again."""
    try:
        yield
    except OlmoRLError:
        raise
    except Exception as error:
        if would_repeat(cause := describe(error)):
            raise StartError(f"{what} cannot be built: {cause}") from error
        raise
