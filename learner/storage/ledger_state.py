"""The events of the ledger, and the state of all draws that follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from olmorl.learner.storage.group_stats import Score, score
from olmorl.messages import Group
from olmorl.ports import LETTER_CAUSES, MOST_DEAD_LETTERS


class Outcome(StrEnum):
    """How a draw ends. Until then it is in flight."""

    TRAINED = "trained"
    ZERO_GRADIENT = "zero_gradient"
    STALE = "stale"
    """Over-age, left over when a finite stream ended without filling a batch, or from before the recipe had a served
    reference."""
    FAILED = "failed"
    EVALUATION = "evaluation"
    """An answer of an evaluation. It is in `rollouts/` and never in the ledger."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower, gc=False):
    """Base of the events."""

    at: float | None = None
    """When it was written, in Unix seconds; None until then."""


class Started(Event, frozen=True, kw_only=True):
    """First line of a file. Steps after `step` are undone; those up to `replay_to` are trained again."""

    incarnation: int
    step: int
    replay_to: int
    previous: int = 0
    """The incarnation whose file this one continues; 0: none."""
    previous_bytes: int = 0
    stream: dict[str, Any]
    """State of the prompt stream at this start. Later events move it on."""


class Drawn(Event, frozen=True, kw_only=True):
    draw: int
    row: str
    position: int
    """Position of the row in the stream."""
    version: int
    """The oldest version that may generate for it."""
    replay_of: int | None = None
    """The failed draw whose row is drawn again. Such a draw does not move the stream."""


class Requeued(Event, frozen=True, kw_only=True):
    """A draw that a failure lost from the queue, queued once more."""

    draw: int
    attempt: int
    version: int


class Recalled(Event, frozen=True, kw_only=True):
    """Failed draws whose rows will be drawn again, on request."""

    draws: list[int]


class Retired(Event, frozen=True, kw_only=True):
    """A row that is never drawn again. A restart must retire it after the same draw."""

    row: str


class Decided(Event, frozen=True, kw_only=True):
    """A draw that ends without being trained."""

    draw: int
    attempt: int
    outcome: Outcome
    cause: str = ""
    score: Score = msgspec.field(default_factory=Score)
    wasted: int = 0
    """Completion tokens of a draw that has no score."""


class Journaled(Event, frozen=True, kw_only=True):
    """The groups of a step are durable in the journal."""

    step: int
    draws: list[tuple[int, int]]
    """Draw and attempt, in the order of the batch."""
    score: Score


def journaled(step: int, groups: Sequence[Group]) -> Journaled:
    """The event for a step whose groups are in the journal."""
    draws = [(group.prompt.draw_id, group.prompt.attempt) for group in groups]
    return Journaled(step=step, draws=draws, score=sum(map(score, groups), Score()))


class Trained(Event, frozen=True, kw_only=True):
    """The learner took the step."""

    step: int
    tokens: int


class Lost(Event, frozen=True, kw_only=True):
    """Completion tokens of lost attempts, by process of an actor, that no earlier event counts."""

    tokens: dict[str, int]


class Changed(Event, frozen=True, kw_only=True):
    """A key of the configuration that changed while the run went on."""

    key: str
    recipe: int | float | None
    """The recipe's value. A start whose recipe has another one goes by that."""
    old: int | float | None
    new: int | float | None
    who: str
    step: int
    """The first step with the new value."""


Line = Started | Drawn | Requeued | Recalled | Retired | Decided | Journaled | Trained | Lost | Changed


class Start(NamedTuple):
    """Where an incarnation began. `scheduling.survives` uses it."""

    incarnation: int
    step: int
    replay_to: int


@dataclass(slots=True)
class Draw:
    """The state of one draw."""

    row: str
    position: int
    version: int
    attempt: int = 1
    outcome: Outcome | None = None
    step: int | None = None
    cause: str = ""


@dataclass(slots=True)
class BatchRecord:
    """The draws of one step."""

    draws: list[tuple[int, int]]
    score: Score
    """The score of its own groups."""
    tally: Score
    """The score of its own groups and of all groups that were filtered while it was assembled."""
    decided: int = 0
    """Draws that ended without training while it was assembled."""
    tokens: int = 0
    trained: bool = False
    members: dict[int, Draw] = field(default_factory=dict)
    """The same draws, for a start that undoes the step."""


@dataclass(slots=True)
class TrainedTokens:
    """Tokens of all trained batches."""

    scored: int = 0
    """Tokens of their completions."""
    fed: int = 0
    """The part of them that the learner trained on."""
    prompt: int = 0

    def add(self, batch: BatchRecord, sign: int = 1) -> None:
        """Add a batch, or take it away again."""
        self.scored += sign * batch.score.tokens
        self.fed += sign * batch.tokens
        self.prompt += sign * batch.score.prompt_tokens


@dataclass
class LedgerState:
    """All events of the ledger, applied in order. A draw has at most one outcome.

    Draws that have ended are counts. Single draws are kept only while they are in flight, in a batch that a start may
    undo, or failed with a dead letter; so the size does not depend on the age of the run.
    """

    num_drawn: int = 0
    """Draws are numbered from 0, in their order."""
    attempts: dict[int, int] = field(default_factory=dict)
    """How many draws have had so many attempts."""
    open: dict[int, Draw] = field(default_factory=dict)
    """Draws in flight that are not in the journal. Each is in the queue exactly once."""
    batches: dict[int, BatchRecord] = field(default_factory=dict)
    """All but those that were forgotten."""
    journaled: int = 0
    """Draws in journaled batches that are not trained."""
    trained: TrainedTokens = field(default_factory=TrainedTokens)
    lost: dict[str, int] = field(default_factory=dict)
    """Tokens of lost attempts, by process of an actor."""
    starts: list[Start] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    decided_tokens: Counter[Outcome] = field(default_factory=Counter)
    open_score: Score = field(default_factory=Score)
    """The score of the groups decided since the last batch was journaled."""
    num_decided: int = 0
    """Draws decided since then."""
    decided_prompt_tokens: int = 0
    """Prompt tokens of all groups that were scored and decided."""
    stream_state: dict[str, Any] = field(default_factory=dict)
    """At the last start."""
    stream_position: int | None = None
    """The position of the prompt stream, if it has moved since then."""
    retired: list[str] = field(default_factory=list)
    """Rows retired since then."""
    failed: dict[int, Draw] = field(default_factory=dict)
    """The newest failed draws that may have a dead letter."""
    to_replay: dict[int, Draw] = field(default_factory=dict)
    """Failed draws whose rows are to be drawn again."""
    changes: list[Changed] = field(default_factory=list)
    """Keys that changed while the run went on, in order."""

    def contradictions(self, events: Iterable[Line]) -> list[int]:
        """Draws that `events` would end although they are not open, or would end twice."""
        ending = Counter(draw for event in events for draw in _ended_by(event))
        return sorted(draw for draw, times in ending.items() if times > 1 or draw not in self.open)

    def apply(self, event: Line) -> None:
        """Apply one event."""
        match event:
            case Started():
                self._start(event)
            case Drawn():
                self._draw(event)
            case Requeued():
                draw = self.open[event.draw]
                self.attempts[draw.attempt] -= 1
                self.attempts[event.attempt] = self.attempts.get(event.attempt, 0) + 1
                draw.attempt, draw.version = event.attempt, event.version
            case Recalled():
                self.to_replay |= {draw: self.failed.pop(draw) for draw in event.draws if draw in self.failed}
            case Retired():
                self.retired.append(event.row)
            case Decided():
                self._decide(event)
            case Journaled():
                members = {draw: self.open.pop(draw) for draw, _ in event.draws}
                tally = self.open_score + event.score
                batch = BatchRecord(event.draws, event.score, tally, self.num_decided, members=members)
                self.batches[event.step] = batch
                self.open_score, self.num_decided = Score(), 0
                self.journaled += len(event.draws)
            case Trained():
                self._train(event)
            case Lost():
                self._lose(event)
            case _:
                self.changes.append(event)

    def forget(self, step: int) -> None:
        """Keep no single draw of the steps up to `step`: no start goes back before it."""
        for old in [old for old, batch in self.batches.items() if old <= step and batch.trained]:
            del self.batches[old]

    def _draw(self, event: Drawn) -> None:
        self.open[event.draw] = Draw(event.row, event.position, event.version)
        self.num_drawn += 1
        self.attempts[1] = self.attempts.get(1, 0) + 1
        if event.replay_of is None:
            self.stream_position = event.position + 1
        else:
            self.to_replay.pop(event.replay_of, None)

    def _lose(self, event: Lost) -> None:
        self.lost |= {process: self.lost.get(process, 0) + tokens for process, tokens in event.tokens.items()}

    def _decide(self, event: Decided) -> None:
        draw = self.open.pop(event.draw)
        self._end(draw, event.attempt, event.outcome, cause=event.cause)
        self.open_score += event.score
        self.num_decided += 1
        self.decided_prompt_tokens += event.score.prompt_tokens
        self.decided_tokens[event.outcome] += event.score.tokens + event.wasted
        if event.outcome is Outcome.FAILED and event.cause in LETTER_CAUSES:
            self.failed[event.draw] = draw
            while len(self.failed) > MOST_DEAD_LETTERS:
                del self.failed[next(iter(self.failed))]

    def _end(self, draw: Draw, attempt: int, outcome: Outcome, *, step: int | None = None, cause: str = "") -> None:
        assert draw.outcome is None, f"{draw} gets a second outcome"
        draw.attempt, draw.outcome, draw.step, draw.cause = attempt, outcome, step, cause
        self.outcomes[outcome] += 1

    def _train(self, event: Trained) -> None:
        batch = self.batches[event.step]
        batch.trained, batch.tokens = True, event.tokens
        self.trained.add(batch)
        self.journaled -= len(batch.draws)
        for draw, attempt in batch.draws:
            self._end(batch.members[draw], attempt, Outcome.TRAINED, step=event.step)

    def _start(self, event: Started) -> None:
        self.starts.append(Start(event.incarnation, event.step, event.replay_to))
        self.stream_state, self.stream_position, self.retired = event.stream, None, []
        for step in [step for step in self.batches if step > event.step]:
            self._undo(self.batches[step])
            if step > event.replay_to:
                self.journaled -= len(self.batches[step].draws)
                self.open |= self.batches.pop(step).members

    def _undo(self, batch: BatchRecord) -> None:
        if batch.trained:
            batch.trained = False
            self.trained.add(batch, -1)
            self.journaled += len(batch.draws)
            self.outcomes[Outcome.TRAINED] -= len(batch.draws)
            for draw in batch.members.values():
                draw.outcome = draw.step = None


def _ended_by(event: Line) -> list[int]:
    """The draws that are open before an event and not after it."""
    match event:
        case Decided():
            return [event.draw]
        case Journaled():
            return [draw for draw, _ in event.draws]
        case _:
            return []
