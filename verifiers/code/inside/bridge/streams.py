"""Connects the program's standard streams to the test process: output goes to the test, and input comes from it.

Printed text is sent before the answer to a call, or as soon as there is much of it. If a test replaces `print` or
`input`, each call of them in the program becomes a call to the test.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

_SENT_CHARACTERS = 1 << 20

Ask = Callable[..., Any]


class PrintedText(io.TextIOBase):
    """An output stream of the program. It collects text until `send`."""

    def __init__(self, ask: Ask, name: str) -> None:
        self._ask = ask
        self._name = name
        self._parts: list[str] = []
        self._held = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if type(text) is not str:
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._parts.append(text)
        self._held += len(text)
        if self._held > _SENT_CHARACTERS:
            self.send()
        return len(text)

    def send(self) -> None:
        if self._parts:
            text = "".join(self._parts)
            self._parts.clear()
            self._held = 0
            self._ask("printed", self._name, text)


class TypedText(io.TextIOBase):
    """An input stream of the program. It reads the standard input of the test."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        return str(self._ask("read", "readline", -1 if size is None else size))

    def read(self, size: int | None = -1) -> str:
        return str(self._ask("read", "read", -1 if size is None else size))


class ProgramStreams:
    """In the program process: replaces the streams and functions that the test watches."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._written: list[PrintedText] = []

    def watch(self, names: Iterable[str]) -> None:
        """
        Args:
            names: the result of `watched_streams`.
        """
        for name in names:
            if name == "streams":
                sys.stdout, sys.stderr = PrintedText(self._told, "stdout"), PrintedText(self._told, "stderr")
                self._written = [sys.stdout, sys.stderr]
                sys.stdin = TypedText(self._asked)
                builtins.input = self._input
            elif name == "print":
                builtins.print = self._print
            elif name == "input":
                builtins.input = self._input

    def send(self) -> None:
        """Send the text printed so far to the test."""
        for stream in self._written:
            stream.send()

    def _told(self, verb: str, *values: Any) -> None:
        self._ask(verb, *values)

    def _asked(self, verb: str, *values: Any) -> Any:
        self.send()
        return self._ask(verb, *values)

    def _input(self, prompt: Any = "", /) -> str:
        return str(self._asked("input", str(prompt)))

    def _print(self, *values: Any, **options: Any) -> None:
        if options.get("file") in (None, sys.stdout):
            options.pop("file", None)
            self._asked("print", values, options)
        else:
            options["file"].write(options.get("sep", " ").join(map(str, values)) + options.get("end", "\n"))


class TesterStreams:
    """In the test process: carries out the program's printing and reading, up to a limit of characters."""

    def __init__(self, max_characters: int) -> None:
        self._left = max_characters
        self.flooded = False
        """Whether the program exceeded the limit."""

    def perform(self, verb: str, values: list[Any]) -> Any:
        """Carry out one request. Raises LookupError for a request that has nothing to do with streams."""
        if verb == "printed":
            name, text = values
            self._left -= len(text)
            if self._left < 0:
                self.flooded = True
                raise OSError("too much output")
            return {"stdout": sys.stdout, "stderr": sys.stderr}[name].write(text) and None
        if verb == "print":
            positional, options = values
            return builtins.print(*positional, **options)
        if verb == "input":
            # The test may have replaced `input`, so the lookup must happen at each call.
            return builtins.input(*values) if str(values[0]) else builtins.input()
        if verb == "read":
            name, size = values
            return {"readline": sys.stdin.readline, "read": sys.stdin.read}[name](size)
        raise LookupError(verb)
