"""The interpreter process. It runs calls one after another, in one namespace, as the cells of a notebook."""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from olmorl.verifiers.code.inside.bridge.peer import Gone, MessageLink
from olmorl.verifiers.code.inside.program import exit_status

DONE, RAISED = b"d", b"r"
"""What is sent after a call: it ran to its end, or raised."""
_CELL = "<call "


def run(end: socket.socket) -> NoReturn:
    """Receive the code of one call after another. What it prints goes to the standard streams."""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    sys.argv = [""]
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stderr = own = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    module = sys.modules["__main__"] = ModuleType("__main__")
    link, number = MessageLink(end), 0
    while True:
        try:
            text = link.receive().decode("utf-8", "surrogatepass")
            number += 1
            outcome = _run_cell(text, f"{_CELL}{number}>", module)
            with suppress(OSError, ValueError):  # the program may have closed it
                own.flush()
            end.sendall(outcome)
        except (Gone, OSError):
            os._exit(0)


def _run_cell(text: str, name: str, module: ModuleType) -> bytes:
    """Run one call, and show the value of its last expression, or its error."""
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    try:
        tree = ast.parse(text, name)
        last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        exec(compile(tree, name, "exec", dont_inherit=True), module.__dict__)
        exec(compile(ast.Interactive(last), name, "single", dont_inherit=True), module.__dict__)
    except SystemExit as stop:
        with suppress(BaseException):
            sys.stdout.flush()
        if isinstance(stop.code, str):
            _show(f"{stop.code}\n")
        os._exit(exit_status(stop.code))
    except BaseException as error:  # a program may raise anything
        with suppress(BaseException):
            sys.stdout.flush()
        _show(_described(error))
        return RAISED
    return DONE


def _described(error: BaseException) -> str:
    """The traceback, with the frames of the program's own code alone."""
    try:
        told = traceback.TracebackException.from_exception(error)
        for one in _chained(told):
            own = [frame for frame in one.stack if frame.filename.startswith(_CELL)]
            one.stack = traceback.StackSummary.from_list(own)
        return "".join(told.format())
    except BaseException:  # no memory, or an error with code of its own
        return f"{type(error).__name__}\n"


def _chained(told: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    if told is not None:
        yield told
        for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
            yield from _chained(other)


def _show(text: str) -> None:
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    with suppress(OSError):  # the program may have closed it
        while data:
            data = data[os.write(2, data) :]
