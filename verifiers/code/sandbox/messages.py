"""The messages between the actor and the sandbox."""

from __future__ import annotations

from typing import Literal

import msgspec


class ProgramTest(msgspec.Struct, frozen=True):
    """One test: a program with either assertions about it or its standard input."""

    program: str
    test: str = ""
    stdin: str | None = None
    altered: tuple[int, ...] = ()
    """The objects that the test makes with other arguments, by the order in which it makes them."""
    step: int = 0
    """How far these arguments differ: see `ExpectedObjects`."""

    @property
    def role(self) -> str:
        return "assert" if self.stdin is None else "stdio"

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """The program, its assertions or input, and how they are altered. The texts may contain lone surrogates."""
        given = self.test if self.stdin is None else self.stdin
        texts = self.program.encode("utf-8", "surrogatepass"), given.encode("utf-8", "surrogatepass")
        return *texts, msgspec.json.encode((self.altered, self.step))


class RunReport(msgspec.Struct, frozen=True):
    """The result that the test process reports. With `printed`, the output still has to be compared."""

    outcome: Literal["passed", "failed", "printed", "label", "memory", "time", "output"]
    detail: str = ""
    output: bytes = b""
    expected: tuple[int, ...] = ()
    """The objects that the test made and an answer equalled: see `ExpectedObjects`."""


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
