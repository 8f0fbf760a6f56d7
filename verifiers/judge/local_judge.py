"""The endpoint for `url = "local"`: it starts the included judge server, and reaches it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from olmorl.clock import Clock
from olmorl.config import HttpService
from olmorl.verifiers.judge.server import JudgeServer
from olmorl.verifiers.judge.service.endpoint import HttpEndpoint


class LocalEndpoint:
    """Has at most one server, which stops with the endpoint. The first call starts the server."""

    def __init__(self, settings: HttpService, path: str, clock: Clock) -> None:
        self._settings = settings
        self._path = path
        self._clock = clock
        self._server = JudgeServer()
        self._starting = asyncio.Lock()
        self._http: HttpEndpoint | None = None

    async def post(self, request: Mapping[str, Any]) -> bytes:
        """Post a request and return the body of a good reply. Raises Rejected or Unavailable."""
        async with self._starting:
            if self._http is None:
                self._http = HttpEndpoint(self._settings, await self._server.start() + self._path, self._clock)
        return await self._http.post(request)

    async def close(self) -> None:
        """Close the connections and stop the server."""
        if self._http is not None:
            await self._http.close()
            self._http = None
        await self._server.stop()
