"""Checks before a run that each server that scores tokens takes the longest sample, and has the policy's vocabulary."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from olmorl.clock import SystemClock
from olmorl.config import HttpService
from olmorl.errors import ConfigError, ResourceError
from olmorl.verifiers.judge.service.endpoint import HttpEndpoint, problem
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable, UnreadableReply
from olmorl.verifiers.teachers import endpoint_of, read, request

CHUNK: Final = 4096
"""Tokens that a server decodes in one request."""
STRIDE: Final = 7919
"""Distance of the token ids of a trial: a prime, so that they are spread over the vocabulary."""


class _Text(msgspec.Struct):
    prompt: str


def check_token_scorers(services: Mapping[str, HttpService], tokenizer: Any, longest: int) -> None:
    """Ask each server for a sample of `longest` tokens, and for the text of every token of `tokenizer`.

    Raises:
        ConfigError: a server refuses such a sample, or has another vocabulary.
        ResourceError: a server does not answer.
    """
    for key, service in services.items():
        asyncio.run(_check(key, service, tokenizer, longest))


async def _check(key: str, service: HttpService, tokenizer: Any, longest: int) -> None:
    if wrong := problem(service, key):
        raise ConfigError(wrong)
    clock = SystemClock()
    completions = endpoint_of(service, clock)
    # /detokenize is beside /v1, not below it.
    texts = HttpEndpoint(service, f"{(service.url or '').rstrip('/').removesuffix('/v1')}/detokenize", clock)
    try:
        tokens = [1 + STRIDE * number % (len(tokenizer) - 1) for number in range(longest)]
        read(await completions.post(request(service, tokens)), 1, tokens[1:])
        for start in range(0, len(tokenizer), CHUNK):
            await _compare(key, texts, service, tokenizer, range(start, min(start + CHUNK, len(tokenizer))))
    except Rejected as error:
        raise ConfigError(
            f"{key}: it refuses a sample of {longest} tokens (data.max_prompt_tokens + sampling.max_tokens): {error}; "
            f"serve it with vLLM and --max-model-len of {longest + 1} or more"
        ) from None
    except (Unavailable, UnreadableReply) as error:
        raise ResourceError(f"{key}: {error}; start it with `vllm serve MODEL`, and give its address in url") from None
    finally:
        await completions.close()
        await texts.close()


async def _compare(key: str, texts: HttpEndpoint, service: HttpService, tokenizer: Any, tokens: Sequence[int]) -> None:
    """Compare the text of tokens here and at the server; name one of them if they differ."""
    while (ours := tokenizer.decode(list(tokens))) != (theirs := await _decoded(texts, service, tokens)):
        if len(tokens) == 1:
            raise ConfigError(
                f"{key}: its vocabulary is not the policy's: token {tokens[0]} is {theirs!r} there and {ours!r} here; "
                "serve a model with the tokenizer of the policy"
            )
        half = len(tokens) // 2
        first = tokens[:half]
        differs = tokenizer.decode(list(first)) != await _decoded(texts, service, first)
        tokens = first if differs else tokens[half:]


async def _decoded(texts: HttpEndpoint, service: HttpService, tokens: Sequence[int]) -> str:
    body: dict[str, Any] = {"tokens": list(tokens)}
    reply = await texts.post(body if service.model is None else {"model": service.model, **body})
    try:
        return msgspec.json.decode(reply, type=_Text).prompt
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the reply of /detokenize has no text ({error})") from None
