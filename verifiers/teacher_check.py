"""Checks before a run that each teacher answers for the longest sample, and has the vocabulary of the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from olmorl.clock import SystemClock
from olmorl.config import Distillation, Teacher
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


def check_teachers(settings: Distillation, tokenizer: Any, longest: int) -> None:
    """Ask each teacher for a sample of `longest` tokens, and for the text of every token of `tokenizer`.

    Raises:
        ConfigError: a teacher refuses such a sample, or has another vocabulary.
        ResourceError: a teacher does not answer.
    """
    for name, teacher in settings.teachers.items():
        asyncio.run(_check(f"distillation.teachers.{name}", teacher, tokenizer, longest))


async def _check(key: str, teacher: Teacher, tokenizer: Any, longest: int) -> None:
    if wrong := problem(teacher, key):
        raise ConfigError(wrong)
    clock = SystemClock()
    completions = endpoint_of(teacher, clock)
    # /detokenize is beside /v1, not below it.
    texts = HttpEndpoint(teacher, f"{(teacher.url or '').rstrip('/').removesuffix('/v1')}/detokenize", clock)
    try:
        tokens = [1 + STRIDE * number % (len(tokenizer) - 1) for number in range(longest)]
        read(await completions.post(request(teacher, tokens)), 1, tokens[1:])
        for start in range(0, len(tokenizer), CHUNK):
            await _compare(key, texts, teacher, tokenizer, range(start, min(start + CHUNK, len(tokenizer))))
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


async def _compare(key: str, texts: HttpEndpoint, teacher: Teacher, tokenizer: Any, tokens: Sequence[int]) -> None:
    """Compare the text of tokens here and at the teacher; name one of them if they differ."""
    while (ours := tokenizer.decode(list(tokens))) != (theirs := await _decoded(texts, teacher, tokens)):
        if len(tokens) == 1:
            raise ConfigError(
                f"{key}: its vocabulary is not the policy's: token {tokens[0]} is {theirs!r} there and {ours!r} here; "
                "give a teacher with the tokenizer of the policy"
            )
        half = len(tokens) // 2
        first = tokens[:half]
        differs = tokenizer.decode(list(first)) != await _decoded(texts, teacher, first)
        tokens = first if differs else tokens[half:]


async def _decoded(texts: HttpEndpoint, teacher: Teacher, tokens: Sequence[int]) -> str:
    body: dict[str, Any] = {"tokens": list(tokens)}
    reply = await texts.post(body if teacher.model is None else {"model": teacher.model, **body})
    try:
        return msgspec.json.decode(reply, type=_Text).prompt
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the reply of /detokenize has no text ({error})") from None
