"""Reads requests of OpenAI's chat API, and writes answers in its form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from olmorl import codec

Message = dict[str, Any]
MODEL = "policy"
ROLES = ("assistant", "developer", "system", "tool", "user")
_KINDS: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}


class Refused(Exception):
    """The endpoint refuses a request. `status` and `code` are those of OpenAI's API."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class ChatRequest(NamedTuple):
    """What an agent asks the policy."""

    messages: tuple[Message, ...]
    """As chat templates read them."""
    digests: tuple[bytes, ...]
    """`digests[n]` stands for the tools and the first n messages."""
    tools: tuple[Message, ...]
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    with_usage: bool
    """A stream ends with the numbers of tokens."""

    @property
    def identity(self) -> tuple[bytes, int | None, tuple[str, ...]]:
        """Equal for a request that a client sends again."""
        return self.digests[-1], self.max_tokens, self.stop


def read(body: bytes, tool_role: str) -> ChatRequest:
    """Raises Refused with what is wrong. The temperature is the run's: the learner trains at that one."""
    try:
        found = _json(body)
    except ValueError as error:
        raise Refused(f"the body of the request is no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("messages"), list) or not found["messages"]:
        raise Refused("a request has a list of messages, with at least one message")
    _check(found)
    tools = () if found.get("tool_choice") == "none" else tuple(_tools(_field(found, "tools", list) or ()))
    written, digests = [], [_digest(b"", tools)]
    for number, message in enumerate(found["messages"]):
        one = message_of(message, number)
        digests.append(after(digests[-1], one))
        written.append({**one, "role": tool_role} if one["role"] == "tool" else one)
    stop = _field(found, "stop", str, list) or ()
    if not all(text and isinstance(text, str) for text in stop):
        raise Refused("stop: a text, or a list of texts")
    return ChatRequest(
        messages=tuple(written),
        digests=tuple(digests),
        tools=tools,
        max_tokens=_max_tokens(found),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=bool(found.get("stream")),
        with_usage=bool((_field(found, "stream_options", dict) or {}).get("include_usage")),
    )


def _json(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, and for what no message carries, such as an integer of over 64 bits."""
    try:
        found = json.loads(text)
        codec.encode(found)
    except (OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return found


def _field(found: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """A field, or None without one. Raises Refused if it is of another kind."""
    value = found.get(key)
    if value is not None and not isinstance(value, kinds):
        raise Refused(f"{key}: {' or '.join(_KINDS[kind] for kind in kinds)}, and not {str(value)[:80]}")
    return value


def after(digest: bytes, message: Message) -> bytes:
    """The digest of a conversation with one more message."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in _calls(message)]
    parts = (message["role"], message.get("content") or "", message.get("reasoning_content") or "", calls)
    return _digest(digest, (*parts, message.get("tool_call_id"), message.get("name")))


def _digest(before: bytes, value: Any) -> bytes:
    return hashlib.blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def _calls(message: Message) -> Sequence[Message]:
    return message.get("tool_calls") or ()


def _check(found: Mapping[str, Any]) -> None:
    """What would change the distribution, or needs several answers, is refused."""
    if (found.get("n") or 1) != 1:
        raise Refused("n: one answer is given for each request")
    if ((_field(found, "response_format", dict) or {}).get("type") or "text") != "text":
        raise Refused("response_format: the policy is sampled without a grammar")
    if found.get("logprobs"):
        raise Refused("logprobs: the endpoint gives none")


def _max_tokens(found: Mapping[str, Any]) -> int | None:
    given = [found[key] for key in ("max_tokens", "max_completion_tokens") if found.get(key) is not None]
    if not all(isinstance(value, int) and value > 0 for value in given):
        raise Refused("max_tokens is a number over 0")
    return min(given, default=None)


def _tools(tools: Any) -> Iterator[Message]:
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused("tools: each one is a function with a name")
        yield {"type": "function", "function": function}


def message_of(message: Any, number: int) -> Message:
    """A message with the fields that chat templates read. Raises Refused."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise Refused(f"messages[{number}]: a message has one of the roles {', '.join(ROLES)}")
    role = "system" if message["role"] == "developer" else message["role"]
    made: Message = {"role": role, "content": _text(message.get("content"), number)}
    if thinking := _field(message, "reasoning_content", str) or _field(message, "reasoning", str):
        made["reasoning_content"] = thinking
    if calls := _field(message, "tool_calls", list):
        try:
            made["tool_calls"] = [_call(call) for call in calls]
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"messages[{number}].tool_calls: {type(error).__name__}: {error}") from None
    return made | {key: value for key in ("tool_call_id", "name") if (value := _field(message, key, str))}


def _text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise Refused(f"messages[{number}].content: a text, or a list of parts with texts")
    return "".join(part["text"] for part in parts)


def _call(call: Mapping[str, Any]) -> Message:
    name, arguments = call["function"]["name"], call["function"].get("arguments") or {}
    parsed = _json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not isinstance(parsed, dict):
        raise TypeError("a call has a name, which is a text, and arguments, which are an object")
    function = {"name": name, "arguments": parsed}
    return {"id": _field(call, "id", str), "type": "function", "function": function}


class Answer(NamedTuple):
    """An answer of the policy, and its numbers of tokens."""

    number: int
    """Of its turn."""
    message: Message
    finish_reason: str
    prompt_tokens: int
    sampled_tokens: int
    created: int

    def body(self) -> dict[str, Any]:
        """The answer as OpenAI's API writes it."""
        choice = {"index": 0, "message": self._message, "finish_reason": self._finish_reason, "logprobs": None}
        return self._head("chat.completion") | {"choices": [choice], "usage": self._usage}

    def chunks(self, with_usage: bool) -> Iterator[dict[str, Any]]:
        """The answer as the parts of a stream."""
        delta = self._message
        if calls := delta.get("tool_calls"):
            delta = {**delta, "tool_calls": [{**call, "index": place} for place, call in enumerate(calls)]}
        for part, finish_reason in ((delta, None), ({}, self._finish_reason)):
            choice = {"index": 0, "delta": part, "finish_reason": finish_reason, "logprobs": None}
            yield self._head("chat.completion.chunk") | {"choices": [choice]}
        if with_usage:
            yield self._head("chat.completion.chunk") | {"choices": [], "usage": self._usage}

    @property
    def _message(self) -> Message:
        """The message with the arguments of calls as JSON."""
        known = ("role", "content", "reasoning_content")
        made: Message = {key: self.message[key] for key in known if key in self.message}
        if "reasoning_content" in made:
            made["reasoning"] = made["reasoning_content"]  # clients of vLLM read this name
        if calls := _calls(self.message):
            made["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
                for call in calls
            ]
        return made

    @property
    def _finish_reason(self) -> str:
        return "tool_calls" if _calls(self.message) and self.finish_reason == "stop" else self.finish_reason

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.number}", "object": kind, "created": self.created, "model": MODEL}

    @property
    def _usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.sampled_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.sampled_tokens,
            "total_tokens": total,
        }
