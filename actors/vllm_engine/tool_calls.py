"""Reads the calls of tools in an answer, by vLLM's parsers, and names the calls that they would hide."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from olmorl import codec
from olmorl.errors import ConfigError

NEEDS_TAG = {"olmo3": "<function_calls>"}
"""Parsers that take an answer such as `print(x=1)` for a call. A call needs the tag."""
_MARKS = ("tool_call_start_token", "tool_calls_start_token", "bot_token", "tool_call_start", "start_token")
"""Attributes in which parsers have the text that begins a call."""


class ToolCallParser:
    """Every call is in the message, or `bad_call` says why one is not."""

    def __init__(self, name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]], think_end: str) -> None:
        """
        Args:
            name: of vLLM's parser, such as `hermes`.
            tools: their schemas.
            think_end: what ends thinking. Calls in it are thoughts.

        Raises:
            ConfigError: vLLM has no such parser, or it does not work with the tokenizer.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)  # else each bad call logs a stack trace
        self._request = ChatCompletionRequest(model="policy", messages=[], tools=[*tools], tool_choice="auto")
        try:
            self._kind = ToolParserManager.get_tool_parser(name)
            parser = self._kind(tokenizer, self._request.tools)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"episodes.tool_parser = {name!r}: vLLM's parser does not work here: {reason}") from None
        self._tokenizer = tokenizer
        found = (getattr(parser, mark, None) for mark in _MARKS)
        self._marks = {mark for mark in found if isinstance(mark, str) and mark} | {
            *filter(None, [NEEDS_TAG.get(name)])
        }
        self._tag = NEEDS_TAG.get(name, "")
        self._think_end = think_end

    def __call__(self, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        """The answer as a message, with `tool_calls`, or with the reason of a bad one in `bad_call`."""
        thinking, _, said = text.rpartition(self._think_end)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if thinking:
            message["reasoning_content"] = thinking
        if self._tag not in said:
            return message
        try:
            parsed = self._kind(self._tokenizer, self._request.tools).extract_tool_calls(said, self._request)
            found = [_call(each, number) for number, each in enumerate(parsed.tool_calls)]
            codec.encode(found)  # raises for what no message carries, such as an integer of over 64 bits
        except Exception as error:  # parsers raise anything on a malformed call
            return message | {"bad_call": f"{type(error).__name__}: {error}"[:200]}
        begun = max((said.count(mark) for mark in self._marks), default=0)
        if (begun > 0 and not found) or (len(found) > 0 and 1 < begun != len(found)):
            return message | {"bad_call": f"{begun} begun and {len(found)} read"}
        if found:
            first = min(place for mark in self._marks if (place := said.find(mark)) >= 0) if begun else len(said)
            message |= {"content": said[:first] if begun else parsed.content or "", "tool_calls": found}
        return message


def _call(call: Any, number: int) -> dict[str, Any]:
    """A call as chat templates read it. Raises ValueError if its arguments are no object."""
    arguments = json.loads(call.function.arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {call.function.name} are no object")
    return {
        "id": f"call{number:05d}",
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
