"""What the built-in tools share: their form, the time and the length of a call."""

from __future__ import annotations

import time
from math import inf
from typing import Any, NamedTuple, Protocol

from olmorl.config import Verifiers
from olmorl.verifiers.code.inside.output import Output

_SHARE = 0.8
"""Part of `episodes.timeout_s` that the calls of an answer may take. The rest is for what the tools do around them."""
_LEAST_S = 0.05


class ReportedError(str):
    """A result that its tool says is an error."""


class Tool(Protocol):
    """One built-in tool, made once in a process. Its public method of the tool's name is what the policy calls.

    Methods may be async. A ValueError, or another of `POLICY_ERRORS`, is read by the policy; any other is an outage.
    """

    def start(self, row: dict[str, Any]) -> Any:
        """Begin an episode on a row."""
        ...

    def close(self) -> Any:
        """End the episode, with everything that was started for it."""
        ...


class AnswerTime:
    """The calls of one answer end together before the deadline of `step`: a slow call is no outage."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: the deadline of `step`."""
        self._whole_s = _SHARE * timeout_s
        self._until = 0.0
        self.begin()

    def begin(self) -> None:
        """The calls of an answer begin."""
        self._until = time.monotonic() + self._whole_s

    def limit_s(self, own_s: float = inf) -> float:
        """Seconds that the next call may take, at most `own_s`. Raises ValueError if none are left."""
        left = self._until - time.monotonic()
        if left < _LEAST_S:
            raise ValueError("the calls of this answer took too long together")
        return min(own_s, left)


class ToolSettings(NamedTuple):
    """What a tool may need of the recipe."""

    verifiers: Verifiers
    """The sandbox of programs, their memory and processor time."""
    time: AnswerTime


def bounded(text: str) -> str:
    """A result as the policy reads it: the middle of a long one is left out."""
    output = Output()
    output.add(text)
    return output.text()
