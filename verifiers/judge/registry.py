"""Makes the verifiers that ask a model: two judges, which share one client, and a reward model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from olmorl.clock import Clock, SystemClock
from olmorl.config import HttpService, RewardModel, Verifiers
from olmorl.messages import Prompt
from olmorl.verifiers.judge.judge_question import JudgeQuestion
from olmorl.verifiers.judge.judged_text import plain, turns
from olmorl.verifiers.judge.model_verifier import ModelVerifier
from olmorl.verifiers.judge.reply_parser import class_score
from olmorl.verifiers.judge.server import JudgeServer
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.endpoint import HttpEndpoint, JudgeEndpoint, address


class RewardModelQuestion:
    """The conversation, for a sequence classifier behind vLLM's `/classify`, whose activation is off.

    Only the recipe maps the raw output to a reward.
    """

    needs_label = False
    reads_transcript = False

    def __init__(self, settings: RewardModel) -> None:
        self._settings = settings

    def request(self, prompt: Prompt, answer: str, label: Any, delimiter: str) -> dict[str, Any]:
        """The body to post. A classifier follows no instructions, so the answer needs no delimiter."""
        conversation = [*turns(prompt.messages), {"role": "assistant", "content": plain(answer)}]
        request: dict[str, Any] = {"messages": conversation, "use_activation": False}
        return request if self._settings.model is None else {"model": self._settings.model, **request}

    def read(self, body: bytes, delimiter: str) -> float:
        """The reward in the reply. Raises UnreadableReply or Unavailable."""
        zero, unit = self._settings.zero_and_unit
        z = (class_score(body) - zero) / unit
        # tanh, because exp can overflow
        return 0.5 + 0.5 * math.tanh(z / 2) if self._settings.squash == "sigmoid" else min(max(z, 0.0), 1.0)


class LocalEndpoint:
    """For `url = "local"`: has at most one judge server, which the first call starts, and which stops with it."""

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


NAMES = ("general-quality", "general-quality_ref", "reward_model")


def model_verifiers(settings: Verifiers, clock: Clock | None = None) -> dict[str, ModelVerifier]:
    """One verifier for each of `NAMES`. Each connects at its first use.

    Raises:
        ConfigError: a template of the judge cannot be used.
    """
    clock = clock or SystemClock()
    judge = Client(_endpoint(settings.judge, "/v1", "/chat/completions", clock), settings.judge, clock)
    reward_model = Client(_endpoint(settings.reward_model, "", "/classify", clock), settings.reward_model, clock)
    verifiers = (
        ModelVerifier("judge", judge, JudgeQuestion(settings.judge, with_reference=False), settings.judge),
        ModelVerifier("judge", judge, JudgeQuestion(settings.judge, with_reference=True), settings.judge),
        ModelVerifier("reward_model", reward_model, RewardModelQuestion(settings.reward_model), settings.reward_model),
    )
    return dict(zip(NAMES, verifiers, strict=True))


def _endpoint(settings: HttpService, default_path: str, path: str, clock: Clock) -> JudgeEndpoint:
    if settings.url == "local":
        return LocalEndpoint(settings, default_path + path, clock)
    return HttpEndpoint(settings, address(settings.url or "", default_path, path), clock)
