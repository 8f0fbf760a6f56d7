"""The process that runs the embedded Redis, and starts it again when it dies."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

from olmorl.deploy import wiring
from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.run_process import RunProcess, Tree
from olmorl.host_memory import host_memory

_CHECK_S = 0.25
"""Pause between two checks of the server."""


def _memory(pid: int | None) -> dict[str, int]:
    """Memory of the server and of its host, in bytes; empty while the server is down."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"redis_memory_bytes": resident * page, "redis_host_memory_bytes": host_memory()}


class RedisProcess(RunProcess):
    """The embedded Redis dies with this process, and is started again when it dies alone."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, "redis")
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()

    async def start(self, access: QueueAccess | None, password: str | None) -> QueueAccess:
        """Start the server on the append-only file of an earlier start, if any, with the `access` of that start.

        Without `access` it gets `password`, by default a new one.
        """
        self._server = await asyncio.to_thread(wiring.embedded_redis, self.settings, access, password)
        await asyncio.to_thread(self._server.start)
        return QueueAccess(self._server.url, self._server.environment)

    async def run(self) -> None:
        """Keep the server up until `stop`. Raises ResourceError when it cannot be started again."""
        while not self._over.is_set():
            async with self._turn:
                await asyncio.to_thread(self._server.restart_if_lost, self.settings.supervision.deadlines.answer_s)
            self.telemetry.record(_memory(self._server.pid))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _CHECK_S)

    async def server(self) -> tuple[Identity | None, str]:
        """The identity of the server, None while it is down; and why it refuses writes, if it does."""
        pid = self._server.pid
        return None if pid is None else Identity(socket.gethostname(), pid), self._server.trouble

    async def stop(self) -> None:
        """Stop the server; its data stays."""
        self._over.set()
        async with self._turn:
            await asyncio.to_thread(self._server.close)
