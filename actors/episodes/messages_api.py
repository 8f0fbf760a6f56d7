"""Anthropic's messages API as OpenAI's chat API, by vLLM's own conversion."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from olmorl.actors.vllm_engine import compat


def chat_body(body: bytes) -> bytes:
    """The request as one of OpenAI's chat API. Raises ValueError with what is wrong."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    asked = AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate_json(body))
    made: str = asked.model_dump_json(exclude_unset=True, exclude_none=True)
    return made.encode()


def message(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A whole answer of OpenAI's chat API as one of the messages API."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    converted = compat.anthropic_message(ChatCompletionResponse.model_validate(answer))
    made: dict[str, Any] = converted.model_dump(mode="json", exclude_none=True)
    return made


async def events(parts: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """The parts of a stream of OpenAI's chat API, the numbers of tokens included, as events of the messages API."""

    async def lines() -> AsyncIterator[str]:
        first, *others = parts
        for part in (first, first, *others):  # vLLM reads no content in the first part
            yield f"data: {json.dumps(part)}\n\n"
        yield "data: [DONE]\n\n"

    async for event in compat.anthropic_events(lines()):
        yield event.encode()
