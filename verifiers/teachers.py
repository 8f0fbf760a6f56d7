"""Teachers, and a served reference: models behind vLLM's `/v1/completions` that give the log-probability of each token.

    POST {"prompt": token ids, "max_tokens": 1, "prompt_logprobs": 0}
    choices[0].prompt_logprobs = [null, {"17": {"logprob": -0.3, ...}}, ...]      one entry for each token

vLLM samples one token after the prompt; it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from olmorl.clock import Clock, SystemClock
from olmorl.config import Distillation, HttpService, Teacher
from olmorl.messages import REFERENCE, TEACHER, Completion, Floats, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Done, Failed, Outcome
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.endpoint import HttpEndpoint, JudgeEndpoint, address
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable, UnreadableReply
from olmorl.verifiers.verifier import Verifier, unscored

LEAST_LOGPROB: Final = -20.0
"""A smaller log-probability counts as this one. vLLM writes -9999 for a token that the model excludes."""
ROUNDING: Final = 1e-3
"""A log-probability may be this much above 0."""
MAX_REPLY_BYTES: Final = 64 << 20
_SHOWN = 120


class _Logprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Logprob] | None]


class _Reply(msgspec.Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Reply)


class Teachers(Verifier):
    """The teacher of a row's source gives the log-probability of each token. A failure gives no verdict to train on."""

    def __init__(
        self,
        settings: Distillation,
        clock: Clock | None = None,
        open_endpoint: Callable[[HttpService, Clock], JudgeEndpoint] | None = None,
        role: str = TEACHER,
    ) -> None:
        """`role` is the first word of the names of failures and counters."""
        clock, open_endpoint = clock or SystemClock(), open_endpoint or endpoint_of
        self._settings, self._role = settings, role
        self._clients = {
            name: Client(open_endpoint(teacher, clock), teacher, clock) for name, teacher in settings.teachers.items()
        }

    def teaches(self, prompt: Prompt) -> bool:
        """Whether a prompt has a teacher."""
        return self._settings.teacher_of(prompt.row) is not None

    def usable(self, label: Any) -> bool:
        return True

    async def problem(self, label: Any) -> str | None:
        return None

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        name = self._settings.teacher_of(prompt.row)
        assert name is not None, "the scorer asks for prompts with a teacher only"
        client, teacher = self._clients[name], self._settings.teachers[name]
        outcome = await self._outcome(client, teacher, prompt.token_ids.tolist(), completion.token_ids.tolist())
        client.counters.add(outcome)
        if isinstance(outcome, Done):
            return Verdict(reward=None, method=name, token_logprobs=outcome.value)
        assert isinstance(outcome, Failed)
        return unscored(outcome._replace(detail=f"{name}: {outcome.detail}"))

    @property
    def counters(self) -> Mapping[str, Any]:
        return {f"{self._role}_{name}": client.counters for name, client in self._clients.items()}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _outcome(self, client: Client, service: HttpService, prompt: list[int], answer: list[int]) -> Outcome:
        body = request(service, [*prompt, *answer])
        try:
            try:
                return Done(await client.ask(body, lambda reply: read(reply, len(prompt), answer)))
            except UnreadableReply:
                client.counters.retries += 1
                return Done(await client.ask(body, lambda reply: read(reply, len(prompt), answer)))
        except UnreadableReply as error:
            return Failed(f"{self._role}_unreadable", str(error))
        except Unavailable as error:
            return Failed(f"{self._role}_down", str(error))
        except Rejected as error:
            return Failed(f"{self._role}_rejected", str(error))


def served_reference(service: HttpService) -> Teachers:
    """The server of the reference policy: it scores the tokens of all rows, as a teacher without sources."""
    return Teachers(Distillation(teachers={"server": Teacher(**dict(service))}), role=REFERENCE)


def endpoint_of(service: HttpService, clock: Clock) -> HttpEndpoint:
    """The endpoint of a server that scores tokens."""
    return HttpEndpoint(service, address(service.url or "", "/v1", "/completions"), clock, MAX_REPLY_BYTES)


def request(service: HttpService, token_ids: Sequence[int]) -> dict[str, Any]:
    """The body to post for the log-probabilities of tokens."""
    body: dict[str, Any] = {"prompt": token_ids, "max_tokens": 1, "prompt_logprobs": 0}
    return body if service.model is None else {"model": service.model, **body}


def read(body: bytes, num_prompt: int, answer: Sequence[int]) -> Floats:
    """Log-probability of each token of an answer behind `num_prompt` tokens, at least `LEAST_LOGPROB`.

    Raises:
        Unavailable: the body is not a completion with `prompt_logprobs`.
        UnreadableReply: it is of other tokens, or has a number that is no log-probability.
    """
    try:
        (choice,) = _decoder.decode(body).choices
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        shown = repr(body[:_SHOWN].decode(errors="replace"))
        raise Unavailable(f"the reply is not a completion with prompt_logprobs ({error}): {shown}") from None
    entries = choice.prompt_logprobs
    if len(entries) != num_prompt + len(answer):
        raise UnreadableReply(f"{len(entries)} log-probabilities for {num_prompt + len(answer)} tokens")
    values_T = np.empty(len(answer))
    for place, (token, entry) in enumerate(zip(answer, entries[num_prompt:], strict=True)):
        if entry is None or (found := entry.get(str(token))) is None:
            raise UnreadableReply(f"no log-probability of token {token}, number {place} of the answer")
        values_T[place] = found.logprob
    if not (np.isfinite(values_T) & (values_T <= ROUNDING)).all():
        raise UnreadableReply(f"not a log-probability: {values_T[~(values_T <= ROUNDING)][:1]}")
    return np.clip(values_T, LEAST_LOGPROB, 0.0).astype(np.float32)
