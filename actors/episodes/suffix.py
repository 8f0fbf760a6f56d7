"""Writes what comes in between two answers as tokens, by the policy's own chat template.

The template writes the conversation with a stand-in for the last answer, and then the new messages. What follows the
stop token behind the stand-in is the suffix. So the tokens of an answer stay as the policy sampled them, and templates
that rewrite earlier answers do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jinja2 import TemplateError

from olmorl.errors import EnvironmentFailed, PromptRefused
from olmorl.messages import Completion, TokenIds

STAND_IN = "qzanswerzq"
"""In place of an answer. No template has this text."""
REFUSED = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that a template raises on a conversation that it was not made for."""
Message = dict[str, Any]
Parse = Callable[[str, Sequence[int]], Message]
"""Reads an answer, from its text and its tokens without the stop token, as a message."""


class TemplateUnfit(ValueError):
    """The chat template cannot write messages after an answer. The message says why."""


class TemplateRenderer:
    """An answer is never written again: each suffix begins behind its last token."""

    def __init__(
        self,
        tokenizer: Any,
        stops: Collection[int],
        *,
        values: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Message] = (),
        parse: Parse | None = None,
        longest: int | None = None,
    ) -> None:
        """
        Args:
            tokenizer: of transformers, with the chat template.
            stops: the tokens that end an answer.
            values: `data.chat_template_kwargs`.
            tools: schemas that the template shows.
            parse: by default an answer is its text.
            longest: most tokens of an episode. A text that is longer whatever its tokens are is refused unread: a
                tokenizer may take a minute over 10 MB.
        """
        self._tokenizer = tokenizer
        self._stops = {tokenizer.convert_ids_to_tokens(stop): stop for stop in stops}
        self._values = values or {}
        self._system_prompt = system_prompt
        self._tools = [*tools] or None
        self._parse = parse or _as_text
        self._longest = longest
        self._most_chars = None if longest is None else longest * max(map(len, tokenizer.get_vocab()))

    def prompt(self, messages: Sequence[Message]) -> TokenIds:
        """Raises EnvironmentFailed if the template refuses the messages, PromptRefused if they are too long."""
        try:
            return self._encode(self._render(messages))
        except REFUSED as error:
            raise EnvironmentFailed(f"the chat template refuses the prompt of the environment: {error}") from None

    def reply(self, answer: Completion) -> Message:
        """The answer as a message."""
        tokens = answer.token_ids.tolist()
        if answer.finish_reason == "stop" and tokens[-1] in self._stops.values():
            tokens.pop()
        return self._parse(self._tokenizer.decode(tokens, skip_special_tokens=False), tokens)

    def added(
        self, conversation: Sequence[Message], reply: Message, messages: Sequence[Message], answer: Completion
    ) -> TokenIds:
        """Raises EnvironmentFailed if the template cannot write the messages, PromptRefused if they are too long."""
        try:
            suffix = self.suffix(conversation, reply, messages)
        except TemplateUnfit as error:
            raise EnvironmentFailed(str(error)) from None
        return suffix.after if int(answer.token_ids[-1]) in self._stops.values() else suffix.whole

    def suffix(self, conversation: Sequence[Message], reply: Message, messages: Sequence[Message]) -> Suffix:
        """What follows an answer. Raises TemplateUnfit."""
        rest = self._behind_the_answer(conversation, reply, messages)
        stops = [(rest.find(stop), -len(stop), stop) for stop in self._stops if stop in rest]
        if not stops:
            known = ", ".join(sorted(self._stops))
            raise TemplateUnfit(f"the chat template ends an answer with no stop token of the model ({known})")
        start, _, stop = min(stops)
        whole = self._encode(rest[start:])
        if not len(whole) or whole[0] != self._stops[stop]:
            raise TemplateUnfit(f"the tokenizer does not read the stop token {stop} as one token")
        return Suffix(rest[start + len(stop) :], whole[1:], whole, rest[:start])

    def _behind_the_answer(self, conversation: Sequence[Message], reply: Message, messages: Sequence[Message]) -> str:
        for stand_in in _stand_ins(reply):
            try:
                text = self._render([*conversation, stand_in, *messages])
            except REFUSED as error:
                raise TemplateUnfit(f"the chat template refuses {_kinds(messages)} after an answer: {error}") from None
            _, found, rest = text.rpartition(STAND_IN)
            if found:
                return rest
        raise TemplateUnfit("the chat template leaves the answer out")

    @property
    def has_tools(self) -> bool:
        return self._tools is not None

    def unseen(self, conversation: Sequence[Message]) -> list[str]:
        """What the template does not show at the beginning of a conversation. Raises TemplateUnfit."""
        try:
            text = self._render(conversation)
        except REFUSED as error:
            system = "" if self._system_prompt is None else " with data.system_prompt"
            raise TemplateUnfit(f"the chat template refuses the prompt{system}: {error}") from None
        parts = {f"the tool {tool['function']['name']!r}": str(tool["function"]["name"]) for tool in self._tools or ()}
        parts |= {f"a message of the role {message['role']!r}": message["content"] for message in conversation}
        parts |= {"data.system_prompt": (self._system_prompt or "").strip()}
        return [what for what, shown in parts.items() if shown not in text]

    def _render(self, messages: Sequence[Message]) -> str:
        turns = list(messages)
        if self._system_prompt is not None and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self._system_prompt})
        text = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, tools=self._tools, **self._values
        )
        return str(text)

    def _encode(self, text: str) -> TokenIds:
        if self._most_chars is not None and len(text) > self._most_chars:
            raise PromptRefused(f"a text of {len(text)} characters has over {self._longest} tokens")
        [ids] = self._tokenizer([text], add_special_tokens=False)["input_ids"]
        return np.array(ids, np.int32)


class Suffix(NamedTuple):
    """What follows an answer, up to the next one."""

    text: str
    after: TokenIds
    """Behind the stop token that the policy sampled."""
    whole: TokenIds
    """With a stop token before it, for an answer that ended without one."""
    within: str
    """What the template has written between the answer and its stop token."""


def _as_text(text: str, _: Sequence[int]) -> Message:
    return {"role": "assistant", "content": text}


def _stand_ins(reply: Message) -> Iterator[Message]:
    """Messages of the same form, with the stand-in where a template writes the end of the answer."""
    said: Message = {"role": "assistant", "content": STAND_IN}
    if calls := reply.get("tool_calls"):
        *others, last = calls
        of_stand_in = {**last, "function": {**last["function"], "arguments": {"value": STAND_IN}}}
        yield {"role": "assistant", "content": "", "tool_calls": [*others, of_stand_in]}
        said["tool_calls"] = calls
    yield said


def _kinds(messages: Sequence[Message]) -> str:
    return " and ".join(dict.fromkeys(f"a message of the role {message.get('role')!r}" for message in messages))
