"""The pool's handles of its processes: they start the fork server and workers, send checks, and kill workers.

The handles run on the event loop of the pool's owner and never block it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

import msgspec

import olmorl
from olmorl.verifiers.pool import pool_protocol
from olmorl.verifiers.pool.worker import WorkerSettings

EXIT_NOTICE_S = 1.0
"""Seconds in which the fork server must report how a worker ended."""
_ASK_AGAIN_S = 0.01
END_S = 2.0
"""Seconds in which the fork server must end after its control socket closes."""


_Answer = pool_protocol.WorkerReady | pool_protocol.WorkerRefused | pool_protocol.TaskReply


class WorkerLost(Exception):
    """A worker ended before its answer. The message is empty, or says why the pool killed it."""


class DeadlineMissed(Exception):
    """A worker did not answer in time. It was killed."""


class WorkerStartFailed(Exception):
    """The fork server or a worker did not start. The message says why."""


class Worker(asyncio.Protocol):
    """One worker process. It has at most one open question at any time."""

    def __init__(self) -> None:
        self.checks = 0
        self.pid = 0
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._buffer = bytearray()
        self._question: asyncio.Future[_Answer] | None = None
        self._number = pool_protocol.START
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast instead of an assertion: transports of uvloop do not derive from the classes of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._question is None or self._question.done():
            return self.kill()
        if len(self._buffer) < pool_protocol.HEADER.size:
            return None
        size, number = pool_protocol.HEADER.unpack_from(self._buffer)
        end = pool_protocol.HEADER.size + size
        if number != self._number or size > pool_protocol.MAX_FRAME_BYTES or len(self._buffer) > end:
            return self._refuse()
        if len(self._buffer) < end:
            return None
        try:
            answer = pool_protocol.read_answer(memoryview(self._buffer)[pool_protocol.HEADER.size :])
        except msgspec.MsgspecError:
            return self._refuse()
        self._buffer = bytearray()
        self._question.set_result(answer)
        return None

    def _refuse(self) -> None:
        """Kill a worker that sends anything but the answer to its question: a later answer could be of another row."""
        if self._question is not None and not self._question.done():
            self._question.set_exception(WorkerLost("it sent what was not asked, and was killed"))
        self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._question is not None and not self._question.done():
            self._question.set_exception(WorkerLost())

    @property
    def alive(self) -> bool:
        return self._transport is not None

    async def ready(self, timeout_s: float) -> None:
        """Wait for the end of the setup. Raises WorkerStartFailed, WorkerLost or DeadlineMissed."""
        answer = await self._wait(timeout_s)
        if not isinstance(answer, pool_protocol.WorkerReady):
            raise WorkerStartFailed(answer.detail)
        self.pid = answer.pid

    async def ask(self, call: bytes, timeout_s: float) -> pool_protocol.TaskReply:
        """Run one check. Raises DeadlineMissed or WorkerLost; in both cases the worker is gone."""
        if self._transport is None:
            raise WorkerLost()
        self._number = secrets.randbits(64)
        self._transport.write(pool_protocol.frame(self._number, call))
        self.checks += 1
        answer = await self._wait(timeout_s)
        assert isinstance(answer, pool_protocol.TaskReply)
        return answer

    async def _wait(self, timeout_s: float) -> _Answer:
        """Wait for the answer. With a timer of its own, an answer that has arrived wins over a late deadline."""
        question: asyncio.Future[_Answer] = self._loop.create_future()
        self._question = question
        timer = self._loop.call_later(timeout_s, self._expire, question)
        try:
            return await question
        finally:
            timer.cancel()
            self._question = None

    def _expire(self, question: asyncio.Future[_Answer]) -> None:
        if not question.done():
            question.set_exception(DeadlineMissed())
            self.kill()

    async def cause(self) -> int:
        """The signal that ended the worker; 0 without a signal or without a report in time."""
        await asyncio.wait([self.exited], timeout=EXIT_NOTICE_S)
        return self.exited.result() if self.exited.done() else 0

    def kill(self) -> None:
        """Kill the worker now."""
        if self._transport is None:
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._transport.abort()
        self._transport = None

    def retire(self) -> None:
        """Close the socket of an idle worker, so that it exits."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None


class ForkServer:
    """The process that forks workers. If it dies, all workers die, and the next `start_worker` restarts it."""

    def __init__(self, settings: WorkerSettings, start_timeout_s: float) -> None:
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._up: asyncio.Future[None] | None = None
        self._workers: dict[int, Worker] = {}

    @property
    def num_workers(self) -> int:
        """Workers that have started and not ended."""
        return len(self._workers)

    async def start_worker(self) -> Worker:
        """Start a worker and wait for its setup. Raises WorkerStartFailed."""
        control = await self._running()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        _, worker = await loop.create_connection(Worker, sock=ours)
        try:
            with theirs:
                await self._ask_for_fork(control, theirs)
            await worker.ready(self._start_timeout_s)
        except DeadlineMissed:
            self.close()  # the pid of the worker is unknown, so only the end of its parent kills it
            raise WorkerStartFailed(f"a worker was not ready after {self._start_timeout_s:g} s") from None
        except (WorkerLost, OSError) as error:
            raise WorkerStartFailed(f"a worker ended during its start {error}".rstrip()) from None
        except WorkerStartFailed:
            worker.retire()
            raise
        self._workers[worker.pid] = worker
        return worker

    async def _ask_for_fork(self, control: socket.socket, link: socket.socket) -> None:
        """Send the fork server its end of a worker's connection, once it has room for the request."""
        until = asyncio.get_running_loop().time() + self._start_timeout_s
        while True:
            try:
                socket.send_fds(control, [b"f"], [link.fileno()])
                return
            except BlockingIOError:  # asyncio has no way to send descriptors; the queue of such a socket is short
                if asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _running(self) -> socket.socket:
        async with self._starting:
            if self._control is not None and self._process is not None and self._process.poll() is None:
                return self._control
            self.close()
            control = self._launch()
            assert self._up is not None
            done, _ = await asyncio.wait([self._up], timeout=self._start_timeout_s)
            if not done or self._control is None:
                self.close()
                late = f"was not ready after {self._start_timeout_s:g} s"
                raise WorkerStartFailed(
                    f"the verifiers' fork server {'ended during its start; see the log' if done else late}"
                )
            return control

    def _launch(self) -> socket.socket:
        """Start the process, and watch its control socket on the event loop."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        root = str(Path(olmorl.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        options = msgspec.json.encode(self._settings).decode()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__ + ".worker", str(theirs.fileno()), str(os.getpid()), options],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **one_thread, "PYTHONPATH": path},
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()
        self._up = loop.create_future()
        self._control = ours
        loop.add_reader(ours, self._notice)
        return ours

    def _notice(self) -> None:
        assert self._control is not None and self._up is not None
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._forget()
            self._kill_group()
            return
        message = pool_protocol.read_notice(data)
        if isinstance(message, pool_protocol.ForkServerReady):
            self._up.set_result(None)
        elif (worker := self._workers.pop(message.pid, None)) is not None:
            worker.exited.set_result(message.signal)

    def _forget(self) -> None:
        """Drop the control socket, because the fork server is gone or about to be killed."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        if self._up is not None and not self._up.done():
            self._up.set_result(None)
        for worker in self._workers.values():
            worker.exited.set_result(0)
        self._workers.clear()

    def close(self) -> None:
        """End the fork server. It kills all its workers and what their checks left behind."""
        self._forget()
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        # After its own end nothing is left, but it may hang, or something may have killed it.
        self._kill_group()
        self._process.wait()
        self._process = None

    def _kill_group(self) -> None:
        """Kill the fork server, its workers, and the processes that checks left in its session."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
