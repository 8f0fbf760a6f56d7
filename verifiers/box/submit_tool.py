"""The tool `submit`: the policy gives its answer with it, and the episode ends."""

from __future__ import annotations

import json
from typing import Any


class Submit:
    """Holds the answer of an episode."""

    def __init__(self, argument: str, settings: Any) -> None:
        """The tool has neither."""
        self.answer: str | None = None

    def start(self, row: dict[str, Any]) -> None:
        self.answer = None

    def close(self) -> None: ...

    def submit(self, answer: str) -> str:
        """
        Submit the final answer. Nothing can be done after it.

        Args:
            answer: The final answer.
        """
        # Schemas do not bind the policy: an answer may come as a number or a list.
        self.answer = answer if isinstance(answer, str) else json.dumps(answer)
        return "submitted"
