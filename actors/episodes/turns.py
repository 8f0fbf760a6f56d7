"""The turns of an episode as the engine answered them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from olmorl.messages import Completion, Episode, Span, TokenIds, Turn, Verdict, Version

DONE, MAX_TURNS, TOO_LONG, BAD_CALL = "done", "max_turns", "too_long", "bad_call"
OUT_OF_TIME = "out_of_time"


class CacheSalt:
    """The salt of an episode's prefix cache: its first version, so that updates keep the cache, until it is too old."""

    def __init__(self) -> None:
        self._version: Version | None = None

    def at(self, now: Version, max_age: int) -> str:
        """The salt of an answer that begins with the version `now`."""
        first = self._version
        if first is None or first.incarnation != now.incarnation or now.number - first.number > max_age:
            self._version = now
        return str(self._version)


class Turns:
    """Each sampled token is in exactly one turn. The turns are in the order in which their answers came."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.answers: list[Completion] = []
        self.num_sampled = 0

    def add(
        self,
        answer: Completion,
        *,
        parent: int,
        kept: int,
        added: TokenIds,
        messages: Sequence[dict[str, Any]],
        asked_at: float,
        ended_at: float,
    ) -> int:
        """The policy answered. Returns the number of the turn."""
        start = self.num_sampled
        self.num_sampled += len(answer.token_ids)
        turn = Turn(
            parent=parent,
            kept=kept,
            added=added,
            start=start,
            end=self.num_sampled,
            finish_reason=answer.finish_reason,
            messages=[*messages],
            asked_at=asked_at,
            ended_at=ended_at,
        )
        self.turns.append(turn)
        self.answers.append(answer)
        return len(self.turns) - 1

    def reply(self, turn: int, message: dict[str, Any]) -> None:
        """The answer of a turn as a message."""
        self.turns[turn] = replace(self.turns[turn], reply=message)

    def completion(self, exit_: str, verdicts: dict[str, Verdict]) -> Completion:
        """The episode as a completion: the sampled tokens of all turns, the text of the last one."""
        spans = (
            Span(span.version, turn.start + span.start, turn.start + span.end)
            for turn, answer in zip(self.turns, self.answers, strict=True)
            for span in answer.spans
        )
        return Completion(
            index=0,
            token_ids=np.concatenate([answer.token_ids for answer in self.answers]),
            logprobs=np.concatenate([answer.logprobs for answer in self.answers]),
            spans=tuple(spans),
            finish_reason="length" if exit_ == TOO_LONG else "stop",
            text=self.answers[-1].text,
            verdicts=verdicts,
            episode=Episode(turns=tuple(self.turns), exit=exit_),
        )
