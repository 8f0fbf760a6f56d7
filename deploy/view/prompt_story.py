"""The story of one prompt: drawn, leased, written by which versions, verified, committed, and how it ended.

The ledger has the draw and its outcome, with times. `rollouts/` has the actor, the versions and the verdicts of the
attempt that gave a result. Attempts before it leave no record but their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError
from olmorl.learner.storage import ledger, rollout_log
from olmorl.learner.storage.ledger_state import Decided, Drawn, Journaled, Line, Requeued, Started, Trained
from olmorl.run_dir import RunFiles

_MOST_SHOWN = 300
"""Characters of a prompt or of an error."""


class Moment(NamedTuple):
    """Something that happened to the prompt."""

    at: float | None
    """Unix seconds; None if it was not recorded."""
    what: str
    """One word."""
    text: str


def prompt_story(run_dir: Path, prompt_id: int) -> list[Moment]:
    """All moments of a draw of the training lane, in order. A run may be read while it trains.

    Raises:
        DataError: the ledger has no such draw.
        ResourceError: the ledger is damaged.
    """
    folder = RunFiles(run_dir).ledger
    newest = max(ledger.incarnations(folder), default=0)
    events = list(ledger.events_until(folder, ledger.end_of(folder, newest + 1)))
    drawn = [event.draw for event in events if isinstance(event, Drawn)]
    if prompt_id not in drawn:
        known = f"it has the prompts {min(drawn)} to {max(drawn)}" if drawn else "it has drawn no prompt yet"
        raise DataError(f"{run_dir}: no prompt {prompt_id}; {known}")
    moments, steps, attempt = _from_ledger(events, prompt_id)
    records = _records(RunFiles(run_dir).rollouts, prompt_id, attempt, steps)
    if record := next(records, None):
        begin = next(i for i, moment in enumerate(moments) if moment.what == "drawn") + 1
        while begin < len(moments) and moments[begin].what == "requeued":
            begin += 1
        moments[begin:begin] = _from_record(record)
    return moments


def _from_ledger(events: Sequence[Line], prompt_id: int) -> tuple[list[Moment], list[int], int]:
    """What the ledger says; the steps whose files may have the rollouts; the attempt that ended the draw."""
    moments: list[Moment] = []
    steps: list[int] = []
    attempt, in_step, is_decided, is_trained = 1, 0, False, False
    for event in events:
        match event:
            case Drawn() if event.draw == prompt_id:
                again = f", once more for the failed prompt {event.replay_of}" if event.replay_of is not None else ""
                text = f"row {event.row}{again}; needs version {event.version} or newer"
                moments.append(Moment(event.at, "drawn", text))
            case Requeued() if event.draw == prompt_id:
                attempt = event.attempt
                text = f"a failure lost it from the queue; attempt {event.attempt} needs version {event.version}"
                moments.append(Moment(event.at, "requeued", text))
            case Decided() if event.draw == prompt_id:
                attempt, is_decided = event.attempt, True
                outcome = {"zero_gradient": "filtered"}.get(event.outcome, str(event.outcome))
                why = event.cause or ("all its rewards are equal" if outcome == "filtered" else "it came too late")
                moments.append(Moment(event.at, outcome, why))
            case Journaled():
                if prompt_id in dict(event.draws):
                    attempt, in_step, is_trained = dict(event.draws)[prompt_id], event.step, False
                    moments.append(Moment(event.at, "batched", f"for step {event.step}, with {len(event.draws)} groups"))
                if is_decided or in_step == event.step:
                    steps.append(event.step)
                    is_decided = False
            case Trained() if event.step == in_step and in_step:
                is_trained = True
                moments.append(Moment(event.at, "trained", f"at step {event.step}, which made version {event.step}"))
            case Started() if in_step > event.step:
                undone = f"incarnation {event.incarnation} went on after step {event.step}"
                if in_step > event.replay_to:
                    moments.append(Moment(event.at, "undone", f"{undone}: it is in flight again"))
                    in_step = 0
                elif is_trained:
                    moments.append(Moment(event.at, "undone", f"{undone}, and trains step {in_step} again"))
                is_trained = False
    if not is_trained and not any(moment.what in ("filtered", "stale", "failed") for moment in moments):
        where = f"waits for step {in_step} to be trained" if in_step else "queued, leased, or its result waits for a step"
        moments.append(Moment(None, "in flight", where))
    return moments, steps, attempt


def _records(folder: Path, prompt_id: int, attempt: int, steps: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """The rollouts of a draw. The files of `steps` come first."""
    files = rollout_log.files(folder)
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
    written = ", ".join(f"{incarnation}.{number} ({count:,})" for (incarnation, number), count in sorted(tokens.items()))
    yield Moment(None, "written", f"{len(completions)} completions, {tokens.total():,} tokens by version {written}")
    yield Moment(None, "verified", "; ".join(_verdicts(completions)))
    lasted = f", {ended - began:.1f} s after it began" if began and ended else ""
    yield Moment(ended, "committed", f"the whole group{lasted}")


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
