"""Starts a sandbox process, sends it one test or session at a time, and ends it, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process

import msgspec

from olmorl.verifiers.code.inside.bridge.peer import HEADER
from olmorl.verifiers.code.sandbox.messages import ProcessEnd, ProgramTest, RunReport, StartReport
from olmorl.verifiers.code.sandbox.tiers import Tier

GRACE_S = 10.0
"""Seconds beyond the time limit of a test before the sandbox process counts as lost."""
_NOTICE_BYTES = 4096
_MAX_REPORT_BYTES = 64 << 20


class SandboxStartFailed(Exception):
    """A sandbox process did not start. The message says why."""


class SandboxLost(Exception):
    """A sandbox process ended, or does not answer."""


class SandboxProcess:
    """Runs one test or session at a time. After `SandboxLost` it must not be used again."""

    def __init__(self, process: Process, control: socket.socket) -> None:
        self._process = process
        self._control = control

    @classmethod
    async def start(cls, tier: Tier, timeout_s: float) -> SandboxProcess:
        """Start the process and wait until it is ready. Raises SandboxStartFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            command = [part.replace("{control}", str(theirs.fileno())) for part in tier.command]
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=PIPE,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    pass_fds=[theirs.fileno()],
                    env=tier.environment,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxStartFailed(f"{command[0]}: {error}") from None
        started = cls(process, ours)
        try:
            await asyncio.wait_for(started._come_up(tier.given), timeout_s)
        except TimeoutError:
            await started.close()
            raise SandboxStartFailed(f"the process was not ready after {timeout_s:g} s") from None
        except BaseException:
            await started.close()
            raise
        return started

    async def _come_up(self, given: bytes) -> None:
        assert self._process.stdin is not None and self._process.stderr is not None
        with contextlib.suppress(OSError):  # if it ended early, its standard error below says why
            self._process.stdin.write(given)
            await self._process.stdin.drain()
            self._process.stdin.close()
        notice = await self._notice()
        if not notice:
            said = await self._process.stderr.read()
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SandboxStartFailed(last[:500] or "the process ended at once, without a message")
        answer = msgspec.json.decode(notice, type=StartReport)
        if not answer.ready:
            raise SandboxStartFailed(answer.refused)

    async def run(self, job: ProgramTest, timeout_s: float) -> tuple[RunReport | None, ProcessEnd]:
        """Run one test. Returns the report, if there is one, and how the test process ended. Raises SandboxLost."""
        try:
            return await asyncio.wait_for(self._run(job), timeout_s + GRACE_S)
        except (TimeoutError, OSError, msgspec.MsgspecError) as error:
            await self.close()
            raise SandboxLost(f"{type(error).__name__}: {error}") from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _run(self, job: ProgramTest) -> tuple[RunReport | None, ProcessEnd]:
        given = b"".join(HEADER.pack(len(part)) + part for part in job.parts())
        with self.begin(job.role) as ours:
            # A test process may die before it has read everything. The fork server then reports its end.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await asyncio.get_running_loop().sock_sendall(ours, given)
            reply = await _until_closed(ours)
        ended = await self.ended()
        report = msgspec.json.decode(reply[HEADER.size :], type=RunReport) if reply and not ended.signal else None
        return report, ended

    def begin(self, role: str) -> socket.socket:
        """Begin a test, or with the role `session` an interpreter. Returns its socket; `ended` must follow."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            socket.send_fds(self._control, [role.encode()], [theirs.fileno()])
        return ours

    async def ended(self) -> ProcessEnd:
        """Wait until what began has ended. Raises ConnectionResetError if the sandbox process ended with it."""
        notice = await self._notice()
        if not notice:
            raise ConnectionResetError("the sandbox process ended")
        return msgspec.json.decode(notice, type=ProcessEnd)

    async def _notice(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._control, _NOTICE_BYTES)
        except ConnectionResetError:
            return b""

    async def kill(self) -> None:
        """End the process and all its children at once. A test that is still running raises SandboxLost."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def close(self) -> None:
        """End the process when it runs no test."""
        await self.kill()
        self._control.close()


async def _until_closed(end: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    try:
        while part := await loop.sock_recv(end, 1 << 18):
            data += part
            if len(data) > _MAX_REPORT_BYTES:
                raise ValueError("the report is too long")
    except ConnectionResetError:
        return b""
    return bytes(data)
