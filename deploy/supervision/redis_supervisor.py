"""Starts and restarts the embedded Redis."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from olmorl.deploy.cluster.ray_cluster import ReservedPlace
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.redis_process import RedisProcess
from olmorl.deploy.supervision.policies import Context, GiveUp, Restarts, is_final, poll, wait_for_start
from olmorl.errors import HostLost, OlmoRLError, RunEnded, first_cause
from olmorl.queues.redis_server.url import PASSWORD, secrets_of

_START_DEADLINE_S = 120.0
_LOAD_DEADLINE_S = 3600.0
"""Time for Redis to load its append-only file. A process that does not answer at all is killed much earlier."""
_LONG_LIFE_S = 60.0
"""A process that lived longer has worked: its death starts a new count."""


class RedisSupervisor:
    """The server keeps its address and its password over all its starts, so that clients only have to try again."""

    def __init__(self, context: Context, place: ReservedPlace) -> None:
        self._context = context
        self._place = place
        self._node = context.cluster.host_of(place)
        self._restarts = Restarts(is_final)
        self._process: RemoteProcess | None = None
        self._password = secrets_of(os.environ).get(PASSWORD)
        self._started_at = 0.0
        self._access: QueueAccess | None = None

    async def start(self) -> QueueAccess:
        """Start the server; returns how processes reach it."""
        await self._start()
        assert self._access is not None
        return self._access

    async def _start(self) -> RemoteProcess:
        context, self._started_at = self._context, time.monotonic()
        process = context.cluster.start(RedisProcess, "redis", self._place, context.tree, calls=16)
        try:
            context.processes.add("redis", await wait_for_start(process, _START_DEADLINE_S))
            self._access = await process.call("start", self._access, self._password, timeout_s=_LOAD_DEADLINE_S)
        except OlmoRLError:
            process.kill()
            raise
        process.begin("run")
        self._process = process
        return process

    async def supervise(self) -> None:
        """Start the process again whenever it dies. It starts the server again by itself when the server dies alone.

        Raises:
            HostLost: its host is lost; on another host the server would have another address.
            OlmoRLError: it cannot be started again.
        """
        while True:
            try:
                await self._until_lost(self._process or await self._start())
            except OlmoRLError as error:
                await self._wait_for_restart(error)

    async def _until_lost(self, process: RemoteProcess) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(process.ended())
                tasks.create_task(self._watch(process))
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _watch(self, process: RemoteProcess) -> None:
        known, said = None, ""
        async for server, trouble in poll(process, "server", self._context.supervision.deadlines.answer_s):
            if bool(trouble) != bool(said):
                outage_s = self._context.settings.queue.outage_deadline_s
                self._context.say(f"{trouble} (within {outage_s:g} s)" if trouble else "Redis takes writes again")
                said = trouble
            if server is None:
                self._context.processes.remove("redis-server")
            elif server != known:
                if known is not None:
                    self._context.processes.note("redis-server", "restarting", "Redis died or hung")
                    self._context.say("Redis died or hung; it runs again, on its append-only file")
                self._context.processes.add("redis-server", server)
                known = server

    async def _wait_for_restart(self, error: OlmoRLError) -> None:
        if isinstance(error, HostLost):
            raise error
        if not self._context.cluster.lives(self._node):
            raise HostLost(f"{error}, and its host is lost") from error
        if time.monotonic() - self._started_at > _LONG_LIFE_S:
            self._restarts.note_work()
        delay = self._restarts.after_death(error)
        if isinstance(delay, GiveUp):
            raise RunEnded(
                f"the embedded Redis cannot be kept up: {error}; mend the cause, then --resume goes on"
            ) from error
        if self._process is not None:
            # Its server would keep the lock of the folder, which the next server needs.
            self._process.kill()
            self._process = None
        for name in ("redis", "redis-server"):
            self._context.processes.remove(name)
        self._context.processes.note("redis", "restarting", str(error))
        self._context.say(f"{error}: Redis starts again on its append-only file")
        await asyncio.sleep(delay)

    async def stop(self) -> None:
        """Stop the server in order: it writes its file first."""
        if self._process is not None:
            with suppress(OlmoRLError):
                await self._process.call("stop", timeout_s=self._context.supervision.deadlines.stop_s)
