"""The policy as OpenAI's chat API, for the agents of one actor: `POST /v1/chat/completions`, `GET /v1/models`."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.chat_request import MODEL, ChatRequest, Refused, read
from olmorl.errors import ConfigError
from olmorl.network import way_to

log = logging.getLogger(__name__)
LARGEST_REQUEST = 64 << 20
"""Bytes."""
ELSEWHERE = "198.51.100.1:9"
"""An address of the range for documentation, outside of every network. Nothing is sent there."""
COMMENT_S = 10.0
"""A stream that waits for its answer gets a comment this often, so that no client takes it for dead."""
_RETRIES = "x-stainless-retry-count"
"""OpenAI's clients number the requests that they send again."""
_NO_KEY = Refused("the request has no key: send Authorization: Bearer $OPENAI_API_KEY, the key of its episode", 401)
_UNKNOWN_KEY = Refused("Incorrect API key provided: no episode under way has it.", 401, "invalid_api_key")


class Endpoint:
    """A key opens the session of its episode, as long as that lasts. Requests of other hosts need it too."""

    def __init__(self, tool_role: str, max_sequence: int, host: str = "127.0.0.1") -> None:
        self._tool_role = tool_role
        self._max_sequence = max_sequence
        self._host = host
        self._sessions: dict[str, AgentSession] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port. Raises ConfigError if this host does not have the address."""
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_post("/v1/chat/completions", self._guarded(self._chat))
        app.router.add_get("/v1/models", self._guarded(self._models))
        app.router.add_route("*", "/{path:.*}", self._guarded(self._elsewhere))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, 0).start()
            own = way_to(ELSEWHERE).own_address if self._host == "0.0.0.0" else self._host
        except OSError as error:
            raise ConfigError(f"episodes.host = {self._host!r}: {error}: give an address of this host") from None
        self.url = f"http://{own}:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def num_sessions(self) -> int:
        """Agents that run."""
        return len(self._sessions)

    @contextmanager
    def serving(self, session: AgentSession) -> Iterator[str]:
        """The session has a key, which the block gets, inside the block."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        try:
            yield key
        finally:
            del self._sessions[key]

    def _guarded(
        self, handle: Callable[[web.Request, AgentSession], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler with the session of its request. What it refuses becomes an error of OpenAI's API.

        Any other error is a fault of the episode, which is then not scored.
        """

        async def guarded(request: web.Request) -> web.StreamResponse:
            key = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            session = self._sessions.get(key)
            try:
                if session is None:
                    raise _UNKNOWN_KEY if key else _NO_KEY
                return await handle(request, session)
            except Refused as refused:
                if session is not None:
                    session.refuse(refused)
                return web.json_response(refused.body(), status=refused.status)
            except ConnectionError:
                raise  # the client hung up
            except Exception as error:
                log.exception("the endpoint failed at a request of an agent")
                assert session is not None
                session.fault = f"{type(error).__name__}: {error}"
                return web.json_response(Refused("the endpoint failed", 500).body(), status=500)

        return guarded

    async def _elsewhere(self, request: web.Request, session: AgentSession) -> web.Response:
        raise Refused(f"{request.method} {request.path}: the policy answers at POST /v1/chat/completions alone", 404)

    async def _models(self, request: web.Request, session: AgentSession) -> web.Response:
        model = {
            "id": MODEL,
            "object": "model",
            "created": 0,
            "owned_by": "olmorl",
            "max_model_len": self._max_sequence,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request, session: AgentSession) -> web.StreamResponse:
        asked = read(await request.read(), self._tool_role)
        is_retry = request.headers.get(_RETRIES, "0") != "0"
        if asked.stream:
            return await self._stream(request, session, asked, is_retry)
        answer = await session.answer(asked, is_retry=is_retry)
        return web.json_response(answer.body())

    async def _stream(
        self, request: web.Request, session: AgentSession, asked: ChatRequest, is_retry: bool
    ) -> web.StreamResponse:
        """The answer in parts, all at its end: only a whole answer can be read as calls of tools."""
        coming = asyncio.ensure_future(session.answer(asked, is_retry=is_retry))
        if (await asyncio.wait([coming], timeout=COMMENT_S))[0]:
            await coming  # a refusal has its status, as long as no part was sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        while not coming.done():
            await response.write(b": the policy answers\n\n")
            await asyncio.wait([coming], timeout=COMMENT_S)
        try:
            parts = (await coming).chunks(asked.with_usage)
        except Refused as refused:
            parts = iter([session.refuse(refused).body()])
        for part in parts:
            await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
