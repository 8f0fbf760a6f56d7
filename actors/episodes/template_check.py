"""Checks that a chat template can write what comes in between two answers: nothing refused, dropped or rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olmorl.actors.episodes.suffix import Message, TemplateRenderer, TemplateUnfit

_NEW = ("qzfirstzq", "qzsecondzq")
_ASKED = [{"role": "user", "content": "What is 3 + 4?"}]


def call(name: str, arguments: Mapping[str, Any], number: int = 0) -> Message:
    """A call of a tool, as chat templates read it."""
    made = {"name": name, "arguments": dict(arguments)}
    return {"id": f"call{number:05d}", "type": "function", "function": made}


def faults(renderer: TemplateRenderer, role: str | None = None) -> list[str]:
    """What the template of a run cannot write after an answer; none is as it should be.

    Args:
        role: the role of the results of tools, in a run whose answers have calls; None: replies are those of a user.
    """
    content: Message = {"role": "assistant", "content": "It is 7."}
    empty: Message = {"role": "assistant", "content": ""}
    thinks: Message = {"role": "assistant", "content": "<think>3 and 4</think>\n\nIt is 7."}
    user: list[Message] = [{"role": "user", "content": _NEW[0]}]
    cases: dict[str, tuple[Message, list[Message]]] = {
        "a user's reply": (content, user),
        "a reply to an empty answer": (empty, user),
    }
    cases["a reply to an answer with thinking"] = (thinks, user)
    if role is not None:
        calls = [call("add", {"a": 3, "b": 4}, 0), call("add", {"a": 5, "b": 6}, 1)]
        results = [
            {"role": role, "name": "add", "tool_call_id": one["id"], "content": text}
            for one, text in zip(calls, _NEW, strict=True)
        ]
        cases = {
            "the result of a call": ({**empty, "tool_calls": calls[:1]}, results[:1]),
            "the result of a call after a text": ({**content, "tool_calls": calls[:1]}, results[:1]),
            "the results of two calls": ({**empty, "tool_calls": calls}, results),
        }
    try:
        found = [f"the chat template does not show {what}" for what in renderer.unseen(_ASKED)]
    except TemplateUnfit as error:
        return [str(error)]
    for what, (reply, messages) in cases.items():
        try:
            found += [f"{what}: {fault}" for fault in _faults_of(renderer, reply, messages)]
        except TemplateUnfit as error:
            found.append(f"{what}: {error}")
    return found


def _faults_of(renderer: TemplateRenderer, reply: Message, messages: Sequence[Message]) -> list[str]:
    suffix = renderer.suffix(_ASKED, reply, messages)
    for message in messages:
        if message["content"] in suffix.within:
            return [f"the chat template writes the role {message['role']!r} before the stop token of the answer"]
        if message["content"] not in suffix.text:
            return [f"the chat template drops the text of the role {message['role']!r}"]
    earlier = [*_ASKED, reply, *messages]
    again = renderer.suffix(earlier, reply, messages)
    return [] if again.text == suffix.text else ["the chat template writes it otherwise later in a conversation"]
