"""The embedded Redis as the launcher keeps it."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from olmorl.deploy import hosts
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.cluster import Place
from olmorl.deploy.process import Process
from olmorl.deploy.supervise import Context, Restarts, introduced, is_passing, still_there
from olmorl.errors import HostLost, OlmoRLError, RunEnded, first_cause
from olmorl.queues.address import PASSWORD, secrets_of

_START_DEADLINE_S = 120.0
_LOAD_DEADLINE_S = 3600.0
"""For its file; one that does not answer at all is given up much earlier."""
_LONG_LIFE_S = 60.0
"""A host that lived longer has done its work: its death starts a new count."""


class QueueServer:
    """One address and one password for the whole run, however often the server starts: everybody just tries again."""

    def __init__(self, context: Context, place: Place) -> None:
        self._context = context
        self._place = place
        self._host = context.cluster.host_of(place)
        self._restarts = Restarts(context.supervision)
        self._process: Process | None = None
        self._password = secrets_of(os.environ).get(PASSWORD)
        self.access: QueueAccess | None = None

    async def start(self) -> QueueAccess:
        """Start the server; returns how everybody reaches it."""
        await self._start()
        assert self.access is not None
        return self.access

    async def _start(self) -> Process:
        context, self._started_at = self._context, time.monotonic()
        process = context.cluster.start(hosts.RedisHost, "redis", self._place, context.tree, calls=16)
        try:
            context.roster.add("redis", await introduced(process, _START_DEADLINE_S))
            self.access = await process.call("start", self.access, self._password, timeout_s=_LOAD_DEADLINE_S)
        except OlmoRLError:
            process.kill()
            raise
        process.begin("run")
        self._process = process
        return process

    async def keep(self) -> None:
        """Start it again whenever its host dies; the host does so when the server dies alone.

        Raises:
            HostLost: only on another host, and so under another address.
            OlmoRLError: it cannot be started again.
        """
        while True:
            try:
                await self._until_lost(self._process or await self._start())
            except OlmoRLError as error:
                await self._after(error)

    async def _until_lost(self, process: Process) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(process.ended())
                tasks.create_task(self._watch(process))
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    async def _watch(self, process: Process) -> None:
        known = None
        async for server in still_there(process, "server", self._context.supervision.answer_deadline_s):
            if server is None:
                self._context.roster.remove("redis-server")
            elif server != known:
                if known is not None:
                    self._context.say("Redis died or hung; it runs again, on its append-only file")
                self._context.roster.add("redis-server", server)
                known = server

    async def _after(self, error: OlmoRLError) -> None:
        if isinstance(error, HostLost):
            raise error
        if not self._context.cluster.lives(self._host):
            raise HostLost(f"{error}, and its host is lost") from error
        lived_s = time.monotonic() - self._started_at
        delay = self._restarts.after_death(worked=lived_s > _LONG_LIFE_S)
        if not is_passing(error) or delay is None:
            raise RunEnded(f"the embedded Redis cannot be kept up: {error}") from error
        if self._process is not None:
            # Its server would keep the folder from the next one.
            self._process.kill()
            self._process = None
        for name in ("redis", "redis-server"):
            self._context.roster.remove(name)
        self._context.say(f"{error}: Redis starts again on its append-only file")
        await asyncio.sleep(delay)

    async def stop(self) -> None:
        """Ask it to write its last and end."""
        if self._process is not None:
            with suppress(OlmoRLError):
                await self._process.call("stop", timeout_s=self._context.settings.cluster.stop_deadline_s)
