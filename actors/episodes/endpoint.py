"""The policy for the agents of one actor: as OpenAI's chat API, `POST /v1/chat/completions` and `GET /v1/models`, and
as Anthropic's messages API, `POST /v1/messages`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiohttp import web

from olmorl.actors.episodes import messages_api
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.chat_request import MODEL, Answer, ChatRequest, Refused, read
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


class Form(NamedTuple):
    """How an API writes answers."""

    whole: Callable[[Answer], dict[str, Any]]
    parts: Callable[[Answer, bool], AsyncIterator[bytes]]
    """Of a stream; with the numbers of tokens if asked for."""
    error: Callable[[Refused], bytes]
    """At the end of a stream that has begun."""


async def _chunks(answer: Answer, with_usage: bool) -> AsyncIterator[bytes]:
    for part in answer.chunks(with_usage):
        yield _data(part)
    yield b"data: [DONE]\n\n"


def _data(part: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(part).encode() + b"\n\n"


_CHAT = Form(Answer.body, _chunks, lambda refused: _data(refused.body()) + b"data: [DONE]\n\n")
_MESSAGES = Form(
    lambda answer: messages_api.message(answer.body()),
    lambda answer, _: messages_api.events(answer.chunks(with_usage=True)),
    lambda refused: b"event: error\n" + _data({"type": "error"} | refused.body()),
)


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
        app.router.add_post("/v1/messages", self._guarded(self._messages))
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

        async def refusing(request: web.Request, session: AgentSession) -> web.StreamResponse:
            try:
                return await handle(request, session)
            except web.HTTPRequestEntityTooLarge:
                raise session.too_long(f"the request has over {LARGEST_REQUEST >> 20} MiB") from None

        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", request.headers.get("X-Api-Key", ""))
            key = given.removeprefix("Bearer ").strip()
            session = self._sessions.get(key)
            try:
                if session is None:
                    raise _UNKNOWN_KEY if key else _NO_KEY
                return await refusing(request, session)
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
        answers_at = "the policy answers at POST /v1/chat/completions and /v1/messages"
        raise Refused(f"{request.method} {request.path}: {answers_at}", 404)

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
        return await self._answer(request, session, read(await request.read(), self._tool_role), _CHAT)

    async def _messages(self, request: web.Request, session: AgentSession) -> web.StreamResponse:
        try:  # in a thread, for the import of vLLM's server
            body = await asyncio.to_thread(messages_api.chat_body, await request.read())
        except ValueError as error:
            raise Refused(f"the body of the request is none of the messages API: {error}") from None
        return await self._answer(request, session, read(body, self._tool_role), _MESSAGES)

    async def _answer(
        self, request: web.Request, session: AgentSession, asked: ChatRequest, form: Form
    ) -> web.StreamResponse:
        coming = session.answer(asked, is_retry=request.headers.get(_RETRIES, "0") != "0")
        if asked.stream:
            return await self._stream(request, session, asyncio.ensure_future(coming), asked.with_usage, form)
        return web.json_response(form.whole(await coming))

    async def _stream(
        self,
        request: web.Request,
        session: AgentSession,
        coming: asyncio.Future[Answer],
        with_usage: bool,
        form: Form,
    ) -> web.StreamResponse:
        """The answer in parts, all at its end: only a whole answer can be read as calls of tools."""
        if (await asyncio.wait([coming], timeout=COMMENT_S))[0]:
            await coming  # a refusal has its status, as long as no part was sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        while not coming.done():
            await response.write(b": the policy answers\n\n")
            await asyncio.wait([coming], timeout=COMMENT_S)
        try:
            async for part in form.parts(await coming, with_usage):
                await response.write(part)
        except Refused as refused:
            await response.write(form.error(session.refuse(refused)))
        await response.write_eof()
        return response
