"""The question to a judge: one chat completion with a JSON schema, at temperature 0."""

from __future__ import annotations

from typing import Any

from olmorl.config import Judge
from olmorl.messages import Prompt
from olmorl.verifiers.judge.judge_template import OPEN, REFERENCE, TRANSCRIPT, fill, load
from olmorl.verifiers.judge.judged_text import plain, turns
from olmorl.verifiers.judge.reply_parser import SCHEMA, chat_content, score

_FORMAT = {"type": "json_schema", "json_schema": {"name": "grade", "strict": True, "schema": SCHEMA}}


class JudgeQuestion:
    """The answer is between two secret lines. The rest of the question does not depend on the answer."""

    needs_label: bool

    def __init__(self, settings: Judge, with_reference: bool) -> None:
        """Read the template. Raises ConfigError if it cannot be used."""
        self.needs_label = with_reference
        self._settings = settings
        self._template = (
            load(settings.reference_template, REFERENCE, {"question", "reference", "answer"})
            if with_reference
            else load(settings.template, OPEN, {"question", "answer"})
        )
        self.reads_transcript = f"{{{TRANSCRIPT}}}" in self._template

    def request(self, prompt: Prompt, answer: str, label: Any, delimiter: str) -> dict[str, Any]:
        """The body to post."""
        values = {"question": _asked(prompt), "answer": plain(answer), "reference": plain(str(label))}
        request = {
            "messages": [{"role": "user", "content": fill(self._template, values, delimiter)}],
            "temperature": 0,
            "max_completion_tokens": self._settings.max_reply_tokens,
            "response_format": _FORMAT,
        }
        return request if self._settings.model is None else {"model": self._settings.model, **request}

    def read(self, body: bytes, delimiter: str) -> float:
        """The reward in the reply. Raises UnreadableReply or Unavailable."""
        return score(chat_content(body), delimiter)


def _asked(prompt: Prompt) -> str:
    """The request of the row as one text."""
    conversation = turns(prompt.messages)
    if len(conversation) == 1:
        return conversation[0]["content"]
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in conversation)
