"""A server that answers as a teacher behind vLLM does, with a switch for faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

TOKENS = 40
"""Words of its vocabulary: token 7 is the text `7`."""


class TeacherServer:
    """Gives token t a log-probability of `-(t + shift) / 10`; `spoil` may damage a reply."""

    def __init__(self, shift: float = 0.0, words: Callable[[int], str] = str) -> None:
        self.asked: list[dict[str, Any]] = []
        self.spoil: Callable[[dict[str, Any]], Any] | None = None
        self.status = 200
        self.most_tokens = 1000
        self._shift = shift
        self._words = words
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Start to listen; returns the URL."""
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/detokenize", self._detokenize)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The body of a completion, in the form of vLLM."""
        first, *rest = asked["prompt"]
        entries = [{str(t): {"logprob": -(t + self._shift) / 10, "rank": 1, "decoded_token": str(t)}} for t in rest]
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": [None, *entries]}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": {"total_tokens": 1 + first}}

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        self.asked.append(asked)
        if self.status != 200:
            return web.Response(status=self.status, text="by the switch")
        if len(asked["prompt"]) >= self.most_tokens:
            return web.json_response({"error": {"message": "maximum context length"}}, status=400)
        reply = self.reply(asked)
        made = self.spoil(reply) if self.spoil else reply
        body = made if isinstance(made, bytes) else json.dumps(made).encode()
        return web.Response(body=body, content_type="application/json")

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        tokens = json.loads(await request.read())["tokens"]
        await asyncio.sleep(0)
        return web.json_response({"prompt": " ".join(map(self._words, tokens))})


class Words:
    """The tokenizer of that vocabulary."""

    def __len__(self) -> int:
        return TOKENS

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))
