"""The story of one prompt: drawn, leased, written by which versions, verified, committed, and how it ended.

The ledger has the draw and its outcome, with times. `rollouts/` has the actor, the versions and the verdicts of the
attempt that gave a result. Attempts before it leave no record but their number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError
from olmorl.learner.storage import ledger, rollout_log
from olmorl.learner.storage.ledger_state import (
    Changed,
    Decided,
    Drawn,
    Journaled,
    Line,
    Outcome,
    Requeued,
    Started,
    Trained,
)
from olmorl.run_dir import RunFiles

_MOST_SHOWN = 300
"""Characters of a prompt or of an error."""


class Moment(NamedTuple):
    """An event in the life of a prompt."""

    at: float | None
    """Unix seconds; None if it was not recorded."""
    what: str
    """The event in one word."""
    text: str


def prompt_story(run_dir: Path, prompt_id: int) -> list[Moment]:
    """All moments of a draw of the training lane, in order. A run may be read while it trains.

    Raises:
        DataError: the ledger has no such draw.
        ResourceError: the ledger is damaged.
    """
    story, newest = _LedgerStory(prompt_id), -1
    for event in ledger.history(run_dir):
        newest = event.draw if isinstance(event, Drawn) else newest
        story.apply(event)
    if not story.begin:
        known = f"it has the prompts 0 to {newest}" if newest >= 0 else "it has drawn no prompt yet"
        raise DataError(f"{run_dir}: no prompt {prompt_id}; {known}")
    written: list[Moment] = []
    if story.has_result:
        records = _records(RunFiles(run_dir).rollouts, prompt_id, story.attempt, story.steps)
        written += _from_record(record) if (record := next(records, None)) else []
    return [*story.begin, *written, *story.ending()]


class _LedgerStory:
    """Follows one draw through the events of the ledger."""

    def __init__(self, prompt_id: int) -> None:
        self._prompt_id = prompt_id
        self.begin: list[Moment] = []
        """The moments before the attempt that gave the result."""
        self._end: list[Moment] = []
        self.steps: list[int] = []
        """Steps whose files may have the rollouts."""
        self.attempt = 1
        self._step: int | None = None
        """The step whose batch has it."""
        self._is_trained = False
        self._is_decided = False

    def apply(self, event: Line) -> None:
        """Apply the next event."""
        match event:
            case Drawn() | Requeued() | Decided() if event.draw == self._prompt_id:
                self._apply_own(event)
            case Journaled():
                self._journal(event)
            case Trained() if event.step == self._step:
                self._is_trained = True
                self._end.append(Moment(event.at, "trained", f"at step {event.step}, which made version {event.step}"))
            case Started() if self._step is not None and self._step > event.step:
                self._undo(event, self._step)
            case Changed() if self.begin and not (self._is_trained or self._is_decided):
                (self.begin if self._step is None else self._end).append(
                    Moment(event.at, "changed", f"{event.key} to {event.new} from step {event.step} on, by {event.who}")
                )

    @property
    def has_result(self) -> bool:
        """Whether a result was taken, so that it may have rollouts."""
        return self._is_decided or bool(self.steps)

    def ending(self) -> list[Moment]:
        """The moments after the result, up to now."""
        if self._is_trained or self._is_decided:
            return self._end
        where = "queued, leased, or its result waits for a step"
        return [*self._end, Moment(None, "in flight", f"waits for step {self._step}" if self._step else where)]

    def _apply_own(self, event: Drawn | Requeued | Decided) -> None:
        match event:
            case Drawn():
                again = f", once more for the failed prompt {event.replay_of}" if event.replay_of is not None else ""
                text = f"row {event.row}{again}; needs version {event.version} or newer"
                self.begin.append(Moment(event.at, "drawn", text))
            case Requeued():
                self.attempt = event.attempt
                text = f"a failure lost it from the queue; attempt {event.attempt} needs version {event.version}"
                self.begin.append(Moment(event.at, "requeued", text))
            case Decided():
                self.attempt, self._is_decided = event.attempt, True
                filtered = event.outcome is Outcome.ZERO_GRADIENT
                why = event.cause or ("all its rewards are equal" if filtered else "it came too late")
                self._end.append(Moment(event.at, "filtered" if filtered else str(event.outcome), why))

    def _journal(self, event: Journaled) -> None:
        attempts = dict(event.draws)
        if self._prompt_id in attempts:
            self.attempt, self._step, self._is_trained = attempts[self._prompt_id], event.step, False
            text = f"for step {event.step}, with {len(event.draws) - 1} other groups"
            self._end.append(Moment(event.at, "batched", text))
        if self._prompt_id in attempts or (self._is_decided and not self.steps):
            # A draw that ended without training is filed with the next step.
            self.steps.append(event.step)

    def _undo(self, event: Started, step: int) -> None:
        undone = f"incarnation {event.incarnation} went on after step {event.step}"
        if step > event.replay_to:
            self._end.append(Moment(event.at, "undone", f"{undone}: it is in flight again"))
            self._step = None
        elif self._is_trained:
            self._end.append(Moment(event.at, "undone", f"{undone}, and trains step {step} again"))
        self._is_trained = False


def _records(folder: Path, prompt_id: int, attempt: int, steps: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """The rollouts of a draw. The files of `steps` come first, then the newest."""
    files = reversed(rollout_log.files(folder))
    for path in sorted(files, key=lambda path: rollout_log.step_of(path) not in steps):
        for record in rollout_log.read(path):
            if record["prompt_id"] == prompt_id and record["attempt"] == attempt:
                yield record


def _from_record(record: Mapping[str, Any]) -> Iterator[Moment]:
    completions = record["completions"]
    began, ended = record.get("started_at"), record.get("finished_at")
    earlier = f"; {record['attempt'] - 1} earlier attempt(s) gave no result" if record["attempt"] > 1 else ""
    actor = record["actor"] or "no actor"
    yield Moment(began, "leased", f"by {actor}, attempt {record['attempt']}{earlier}")
    if not completions:
        if record.get("detail"):
            yield Moment(None, "error", _shortened(record["detail"]))
        return
    tokens: Counter[tuple[int, int]] = Counter()
    for completion in completions:
        for (number, start, end), incarnation in zip(completion["versions"], completion["incarnations"], strict=True):
            tokens[incarnation, number] += end - start
    written = ", ".join(
        f"{incarnation}.{number} ({count:,})" for (incarnation, number), count in sorted(tokens.items())
    )
    written_at = max(completion.get("generated_at", 0.0) for completion in completions)
    yield Moment(
        written_at or None, "written", f"{len(completions)} completions, {tokens.total():,} tokens by version {written}"
    )
    yield from _turns(completions)
    yield Moment(None, "verified", "; ".join(_verdicts(completions)))
    lasted = f", {ended - began:.1f} s after it began" if began and ended else ""
    yield Moment(ended, "committed", f"the whole group{lasted}")


def _turns(completions: Sequence[Mapping[str, Any]]) -> Iterator[Moment]:
    """The turns of each episode: when each one was asked for, what it continues, its tokens, and what it says."""
    for completion in completions:
        for number, turn in enumerate(completion.get("turns", ()), 1):
            tokens = f"{len(turn['added_token_ids'])} tokens in, {turn['end'] - turn['start']} out"
            before = turn["parent"] + 1
            branch = "" if before == number - 1 else f", a branch of turn {before}" if before else ", a new branch"
            text = f"{completion['index']}, turn {number}{branch}: {tokens}: {_said(turn['reply'])}"
            ended = f"; exit {completion['exit']}" if number == len(completion["turns"]) else ""
            yield Moment(turn["asked_at"] or None, "episode", text + ended)


def _said(reply: Mapping[str, Any]) -> str:
    """The text of an answer, and its calls of tools."""
    functions = (call["function"] for call in reply.get("tool_calls", ()))
    calls = [f"{function['name']}({json.dumps(function['arguments'])})" for function in functions]
    return _shortened(" ".join([reply.get("content") or "", *calls]))


def _verdicts(completions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each verifier its rewards, and for all of them the solved completions."""
    for name in sorted({name for completion in completions for name in completion["verdicts"]}):
        found = [completion["verdicts"][name] for completion in completions if name in completion["verdicts"]]
        rewards = ["-" if verdict["reward"] is None else f"{verdict['reward']:g}" for verdict in found]
        seconds = sum(verdict["seconds"] for verdict in found)
        yield f"{name} gave {' '.join(rewards)} ({seconds:.3f} s)"
    yield f"{sum(completion['solved'] for completion in completions)} solved"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
