"""The question to a reward model: the conversation, for a sequence classifier behind vLLM's `/classify`."""

from __future__ import annotations

import math
from typing import Any

from olmorl.config import RewardModel
from olmorl.messages import Prompt
from olmorl.verifiers.judge.judged_text import plain, turns
from olmorl.verifiers.judge.reply_parser import class_score


class RewardModelQuestion:
    """Only the recipe maps the raw output to a reward. The activation of the server is off."""

    needs_label = False

    def __init__(self, settings: RewardModel) -> None:
        self._settings = settings

    def request(self, prompt: Prompt, answer: str, label: Any, delimiter: str) -> dict[str, Any]:
        """The body to post. A classifier follows no instructions, so the answer needs no delimiter."""
        conversation = [*turns(prompt.messages), {"role": "assistant", "content": plain(answer)}]
        request: dict[str, Any] = {"messages": conversation, "use_activation": False}
        return request if self._settings.model is None else {"model": self._settings.model, **request}

    def read(self, body: bytes, delimiter: str) -> float:
        """The reward in the reply. Raises UnreadableReply or Unavailable."""
        zero, unit = self._settings.zero_and_unit
        z = (class_score(body) - zero) / unit
        # tanh, because exp can overflow
        return 0.5 + 0.5 * math.tanh(z / 2) if self._settings.squash == "sigmoid" else min(max(z, 0.0), 1.0)
