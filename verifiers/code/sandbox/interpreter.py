"""A Python interpreter in the sandbox that keeps its state between calls."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from olmorl.config import Verifiers
from olmorl.verifiers.code.inside.bridge.peer import HEADER
from olmorl.verifiers.code.sandbox.messages import ProcessEnd
from olmorl.verifiers.code.sandbox.sandbox import Sandbox
from olmorl.verifiers.code.sandbox.sandbox_process import GRACE_S, SandboxLost, SandboxProcess

_SESSION_CPU_S = 86400.0
"""Processor time of an interpreter as the kernel limits it. Each call has a limit of its own."""


class CallReport(msgspec.Struct, frozen=True):
    """How a call ended."""

    output: str
    """What it printed, the value of its last expression, or its traceback; the middle of a long one is left out."""
    raised: bool
    ended: str
    """Why the interpreter is gone, and its state: `cpu`, `wall`, `status N`, `signal N`, `closed`. Empty: it is there.
    """


class Interpreter:
    """One interpreter at a time, forked from a warm process that sees no program. `close` ends it and its files."""

    def __init__(self, settings: Verifiers) -> None:
        # With a named tier the caller has tried the attacks, once for many interpreters.
        whole = settings.model_copy(update={"code_test_timeout_s": _SESSION_CPU_S})
        self._sandbox = Sandbox(whole, vet=settings.code_tier == "auto")
        self._process: SandboxProcess | None = None
        self._session: socket.socket | None = None

    async def start(self) -> None:
        """Start the warm process if there is none. Raises SandboxStartFailed."""
        if self._process is None:
            self._process = await self._sandbox.start_process()

    async def run(self, code: str, cpu_s: float, wall_s: float) -> CallReport:
        """Run a call, in a new interpreter if there is none.

        Args:
            cpu_s: most processor seconds of the call, and of the threads that go on after it.
            wall_s: most seconds.

        Raises:
            SandboxStartFailed: the sandbox does not start.
            SandboxLost: it ended, or does not answer.
        """
        await self.start()
        assert self._process is not None
        try:
            async with asyncio.timeout(wall_s + GRACE_S):
                if self._session is None:
                    self._session = self._process.begin("session")
                report = await self._ask(self._session, {"code": code, "cpu_s": cpu_s, "wall_s": wall_s})
                if report is None or report.ended:
                    end = await self._end()
                    if report is None and end.signal:
                        raise ConnectionResetError(f"signal {end.signal} ended the session")
        except BaseException as error:
            await self.stop()
            if isinstance(error, OSError | msgspec.MsgspecError):  # TimeoutError is one
                raise SandboxLost(f"{type(error).__name__}: {error}") from None
            raise
        return report or CallReport("", raised=False, ended="closed")

    async def _ask(self, session: socket.socket, call: dict[str, str | float]) -> CallReport | None:
        """The report of a call; None if the session has ended."""
        loop = asyncio.get_running_loop()
        body = msgspec.json.encode(call)
        with suppress(ConnectionError):  # the missing report says so
            await loop.sock_sendall(session, HEADER.pack(len(body)) + body)
        answer = bytearray()
        while len(answer) < HEADER.size or len(answer) < HEADER.size + HEADER.unpack_from(answer)[0]:
            try:
                part = await loop.sock_recv(session, 1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            answer += part
        return msgspec.json.decode(answer[HEADER.size :], type=CallReport)

    async def close(self) -> None:
        """End the interpreter, and everything of it. The next one begins with nothing."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(GRACE_S):
                await self._end()
        except (OSError, msgspec.MsgspecError):
            await self.stop()

    async def _end(self) -> ProcessEnd:
        assert self._process is not None and self._session is not None
        self._session.close()
        self._session = None
        return await self._process.ended()

    async def stop(self) -> None:
        """End the warm process too."""
        process, self._process = self._process, None
        if self._session is not None:
            self._session.close()
            self._session = None
        if process is not None:
            await process.close()
