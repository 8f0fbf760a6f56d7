"""The verifiers `general-quality`, `general-quality_ref` and `reward_model`, which ask a model for the reward."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from olmorl.config import HttpService
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Done, Failed, Limit, Outcome
from olmorl.verifiers.judge.judged_text import contentless, transcript
from olmorl.verifiers.judge.service.cache import fingerprint
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.endpoint import problem
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable, UnreadableReply
from olmorl.verifiers.verifier import Verifier, unscored

MAX_ANSWER_CHARS = 32_000
"""A longer answer scores 0: it may not fit the model."""
INNOCENT = "I do not know."
"""An answer that every working service accepts."""


class Question(Protocol):
    """Makes the request to one kind of model, and reads the reward in its reply."""

    @property
    def needs_label(self) -> bool: ...

    @property
    def reads_transcript(self) -> bool:
        """Whether all turns of an episode are its answer, and not the last alone."""
        ...

    def request(self, prompt: Prompt, answer: str, label: Any, delimiter: str) -> dict[str, Any]:
        """The body to post. `delimiter` is a secret around the answer."""
        ...

    def read(self, body: bytes, delimiter: str) -> float:
        """The reward in a reply. Raises UnreadableReply or Unavailable."""
        ...


class ModelVerifier(Verifier):
    """The reward comes from the model's reply to this answer. A failure of the service gives no reward.

    A failure counts against the answer in one case: the service refuses the request with this answer twice, and accepts
    the same request with another answer in between. An unreadable reply never does: it is a fault of the judge.
    """

    def __init__(self, name: str, client: Client, question: Question, settings: HttpService) -> None:
        """
        Args:
            name: the section of the recipe under `verifiers`. Error kinds begin with it.
            client: other verifiers of the same service may share it.
        """
        self._name = name
        self._client = client
        self._question = question
        self._settings = settings

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        if self._settings.url is None:
            return Verdict(reward=None, error_kind=f"{self._name}_setup", detail=f"set verifiers.{self._name}.url")
        if text is None:
            return Verdict(reward=0.0, method="no_answer", detail="unclosed thinking")
        if len(text) > MAX_ANSWER_CHARS:
            return unscored(Limit("length"))
        if contentless(text, str(label) if self._question.needs_label else ""):
            return Verdict(reward=0.0, method="no_answer", detail="contentless")
        if self._question.reads_transcript and completion.turns:
            text = transcript(completion.messages)[-MAX_ANSWER_CHARS:]
        outcome = await self._outcome(prompt, text, label)
        self._client.counters.add(outcome)
        return Verdict(reward=outcome.value, method=self._name) if isinstance(outcome, Done) else unscored(outcome)

    def usable(self, label: Any) -> bool:
        return self._problem(label) is None

    async def problem(self, label: Any) -> str | None:
        return self._problem(label)

    @property
    def counters(self) -> Mapping[str, Any]:
        return {self._name: self._client.counters}

    async def close(self) -> None:
        await self._client.close()

    def _problem(self, label: Any) -> str | None:
        if setup := problem(self._settings, f"verifiers.{self._name}"):
            return setup
        given = isinstance(label, (str, int, float)) and not isinstance(label, bool) and bool(str(label).strip())
        return (
            None if given or not self._question.needs_label else f"a reference answer must be text, not {label!r:.80}"
        )

    async def _outcome(self, prompt: Prompt, answer: str, label: Any) -> Outcome:
        key = fingerprint(self._question.request(prompt, answer, label, ""))
        if (kept := self._client.cache.get(key)) is not None:
            self._client.counters.cache_hits += 1
            return Done(kept)
        try:
            reward = await self._judged(prompt, answer, label)
        except UnreadableReply as error:
            return Failed(f"{self._name}_unreadable", str(error))
        except Unavailable as error:
            return Failed(f"{self._name}_down", str(error))
        except Rejected as error:
            return Failed(f"{self._name}_rejected", str(error))
        if reward is None:
            return Limit("rejected")
        self._client.cache.put(key, reward)
        return Done(reward)

    async def _judged(self, prompt: Prompt, answer: str, label: Any) -> float | None:
        """The reward; None if the service refuses this answer alone.

        Raises:
            Rejected: it refuses every answer.
            UnreadableReply: the model replied twice without a score.
        """
        try:
            return await self._ask(prompt, answer, label)
        except Rejected:
            await self._ask(prompt, INNOCENT, label)
        try:
            return await self._ask(prompt, answer, label)
        except Rejected:
            return None

    async def _ask(self, prompt: Prompt, answer: str, label: Any) -> float:
        """The reward. An unreadable reply is asked for once more."""
        try:
            return await self._ask_once(prompt, answer, label)
        except UnreadableReply:
            self._client.counters.retries += 1
            return await self._ask_once(prompt, answer, label)

    async def _ask_once(self, prompt: Prompt, answer: str, label: Any) -> float:
        delimiter = secrets.token_hex(16)
        request = self._question.request(prompt, answer, label, delimiter)
        return await self._client.ask(request, lambda body: self._question.read(body, delimiter))
