"""The messages between the actor and the sandbox."""

from __future__ import annotations

from typing import Literal

import msgspec


class ProgramTest(msgspec.Struct, frozen=True):
    """One test: a program with either assertions about it or its standard input."""

    program: str
    test: str = ""
    stdin: str | None = None

    @property
    def role(self) -> str:
        return "assert" if self.stdin is None else "stdio"

    def parts(self) -> tuple[bytes, bytes]:
        """The program and its assertions or input, as bytes. The texts may contain lone surrogates."""
        given = self.test if self.stdin is None else self.stdin
        return self.program.encode("utf-8", "surrogatepass"), given.encode("utf-8", "surrogatepass")


class RunReport(msgspec.Struct, frozen=True):
    """The result that the test process reports. With `printed`, the output still has to be compared."""

    outcome: Literal["passed", "failed", "printed", "label", "memory", "time", "output"]
    detail: str = ""
    output: bytes = b""


class ProcessEnd(msgspec.Struct, frozen=True):
    """How a test process ended, as the fork server of the sandbox reports it."""

    in_time: bool
    signal: int
    cpu_s: float
    seconds: float


class StartReport(msgspec.Struct, frozen=True):
    """The fork server of the sandbox has started, or `refused` says why it could not."""

    ready: bool = False
    refused: str = ""
