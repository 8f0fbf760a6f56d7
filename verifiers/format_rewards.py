"""Rewards for the form of a completion, regardless of its content. A row uses them with small weights, next to others.

They read the completion with its thinking. Each reward is in [0, 1].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.verifier import Verifier

ANSWER_TAGS = ("<answer>", "</answer>")
ENOUGH_STEPS = 3
LENGTH_SCALE = 32768
"""The default of open-instruct's `max_length_verifier_max_length`."""
READ = 65536
"""Steps are searched only in this many characters at the start of a completion."""
_STEP = re.compile(
    r"^[ \t]*(?:[-*•][ \t]|(?:\*\*|#+[ \t]*)?step[ \t]+\d+\b[.:)]?|\d{1,3}[.)][ \t]"
    r"|(?:first|second|third|next|then|finally|lastly)(?:ly)?,)[ \t]*(.*)$",
    re.IGNORECASE | re.MULTILINE,
)


class _Unlabelled(Verifier):
    """A verifier without a label. Every label is usable."""

    def usable(self, label: Any) -> bool:
        return True

    async def problem(self, label: Any) -> str | None:
        return None


class StrictFormat(_Unlabelled):
    """1 if thinking and answer are in their tags, neither is blank, and no other text exists."""

    def __init__(self, think_start: str, think_end: str) -> None:
        self._think_start = think_start
        self._tags = (think_start, think_end, *ANSWER_TAGS)

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        whole = (self._think_start if prompt.thinking_opened else "") + completion.text
        before, thinking, between, answer, after = _split(whole, self._tags)
        kept = not (before + between + after).strip() and _is_visible(thinking) and _is_visible(answer)
        return Verdict(reward=float(kept), extracted=answer.strip()[:2048] if kept else None, method="format")


def _split(text: str, tags: Sequence[str]) -> list[str]:
    """The text before, between and after the tags. All parts are empty unless each tag occurs once, in order."""
    parts = []
    if all(text.count(tag) == 1 for tag in tags):
        for tag in tags:
            part, _, text = text.partition(tag)
            parts.append(part)
    return [*parts, text] if len(parts) == len(tags) else [""] * (len(tags) + 1)


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


class TagCount(_Unlabelled):
    """The share of the four tags, two for thinking and two for the answer, that occur exactly once."""

    def __init__(self, think_start: str, think_end: str) -> None:
        self._think_start = think_start
        self._tags = (think_start, think_end, *ANSWER_TAGS)

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        whole = (self._think_start if prompt.thinking_opened else "") + completion.text
        once = [tag for tag in self._tags if whole.count(tag) == 1]
        return Verdict(reward=len(once) / len(self._tags), extracted=" ".join(once), method="tag_count")


class ReasoningSteps(_Unlabelled):
    """The number of steps divided by three, at most 1. A step is a line with a number, a bullet or "First," in front.

    A line with only a marker is no step, and equal lines count once.
    """

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        said = {" ".join(found[1].lower().split()) for found in _STEP.finditer(completion.text[:READ])}
        steps = sum(any(character.isalnum() for character in line) for line in said)
        return Verdict(reward=min(steps / ENOUGH_STEPS, 1.0), extracted=str(steps), method="reasoning_steps")


_NO_TOKENS = Verdict(
    reward=None,
    error_kind="no_tokens",
    detail="the completion has text and no token ids, so its length is unknown; olmorl-verify takes them from a column "
    "completion_ids",
)


class _Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_tokens: int
    buffer: int


class Overlong(Verifier):
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4) with a budget per row, plus 1 to be in [0, 1].

    The label is `{"max_tokens": M, "buffer": B}`. The reward is 1 up to M - B tokens, including thinking, and falls
    linearly to 0 at M. `objective.overlong_buffer` is the same punishment for a whole run, at `sampling.max_tokens`.
    If both are on, as with the preset `dapo`, both apply.
    """

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        budget = _read(label)
        if isinstance(budget, str):
            return Verdict(reward=None, error_kind="label", detail=budget)
        tokens = len(completion.token_ids)
        if not tokens and completion.text:
            return _NO_TOKENS
        beyond = max(tokens - (budget.max_tokens - budget.buffer), 0)
        return Verdict(reward=1 - min(beyond / budget.buffer, 1.0), extracted=str(tokens), method="overlong")

    def usable(self, label: Any) -> bool:
        return not isinstance(_read(label), str)

    async def problem(self, label: Any) -> str | None:
        budget = _read(label)
        return budget if isinstance(budget, str) else None


def _read(label: Any) -> _Budget | str:
    """Read a label, which is an object or its JSON text. Returns the reason if it cannot be used."""
    try:
        budget = msgspec.json.decode(label, type=_Budget) if isinstance(label, str) else msgspec.convert(label, _Budget)
    except msgspec.MsgspecError as error:
        return f'the label must be {{"max_tokens": M, "buffer": B}}: {error}'
    fits = 0 < budget.buffer <= budget.max_tokens
    return budget if fits else f"buffer must be from 1 to max_tokens = {budget.max_tokens}, not {budget.buffer}"


class Length(Verifier):
    """1 at the label's number of tokens, and a 32768th less for each token between, as in open-instruct. At least 0."""

    def __init__(self, may_be_shorter: bool) -> None:
        """With `may_be_shorter`, a shorter completion also gets 1."""
        self._may_be_shorter = may_be_shorter

    async def verify_row(self, prompt: Prompt, completion: Completion, text: str | None, label: Any) -> Verdict:
        if reason := await self.problem(label):
            return Verdict(reward=None, error_kind="label", detail=reason)
        tokens = len(completion.token_ids)
        if not tokens and completion.text:
            return _NO_TOKENS
        between = tokens - float(label)
        distance = max(between, 0.0) if self._may_be_shorter else abs(between)
        return Verdict(reward=max(1 - distance / LENGTH_SCALE, 0.0), extracted=str(tokens), method="length")

    def usable(self, label: Any) -> bool:
        try:
            return not isinstance(label, bool) and 0 < float(label) < float("inf")
        except (TypeError, ValueError):
            return False

    async def problem(self, label: Any) -> str | None:
        return None if self.usable(label) else f"the label must be a number of tokens over 0, not {label!r:.80}"
