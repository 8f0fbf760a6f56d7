"""The interface of every built-in verifier: it scores a completion against a label, and checks labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.check_outcomes import Failed, Limit


class Verifier(Protocol):
    """One built-in verifier. Rewards are in [0, 1]. Processes and connections of its own start on first use."""

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        """Score a completion against a usable label.

        Args:
            completion: as it was sampled.
            text: the completion without its thinking; None if the thinking was never closed.
        """
        ...

    def usable(self, label: Any) -> bool:
        """A check of microseconds: true only if the label is certainly usable."""
        ...

    async def problem(self, label: Any) -> str | None:
        """Why the label cannot be used; None if it can."""
        ...

    @property
    def counters(self) -> Mapping[str, Any]:
        """Counters besides the counters of the pool, by name. Verifiers that share a counter give it the same name."""
        return {}

    async def close(self) -> None:
        """Release processes and connections. May be called twice."""
        return


class AnswerVerifier(Verifier, Protocol):
    """A verifier that reads only the answer text. Without an answer the reward is 0."""

    async def verify(self, text: str, label: Any) -> Verdict:
        """Score `text`, a completion without its thinking, against a usable label."""
        ...

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        if text is None or not text.strip():
            return Verdict(reward=0.0, method="no_answer", detail="unclosed thinking" if text is None else "blank")
        return await self.verify(text, label)


def unscored(outcome: Failed | Limit, extracted: str | None = None) -> Verdict:
    """The verdict of a check without a value: 0 if the answer exceeded a limit, no reward for a failure."""
    if isinstance(outcome, Limit):
        return Verdict(reward=0.0, extracted=extracted, method="limit", detail=outcome.kind)
    return Verdict(reward=None, extracted=extracted, error_kind=outcome.error_kind, detail=outcome.detail)
