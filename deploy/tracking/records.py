"""What the orchestrator tells a tracking process.

orchestrator -> process   TrackedRun, then TrackedLine and TrackedAttempt
process -> orchestrator   Taken, for each of the last two, and once more at the end
"""

from __future__ import annotations

import time
from typing import Any, Literal

from olmorl.deploy.view.dashboard import RecentSample
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Completion, Group, Message

SinkName = Literal["tensorboard", "wandb", "trackio", "traces"]


class TrackedRun(Message, frozen=True, kw_only=True):
    """The run, and where its records go."""

    name: str
    run_id: str
    """The name of the run outside of its folder."""
    folder: str
    sink: SinkName
    settings: dict[str, Any]
    """The recipe."""


class TrackedLine(Message, frozen=True, kw_only=True):
    """A line of `metrics.jsonl`, or fields of an evaluation that were added to one."""

    at: float
    """Wall time, seconds."""
    line: dict[str, Any]
    samples: list[RecentSample]
    """Some answers since the line before."""


class TimedCompletion(Message, frozen=True, kw_only=True):
    """One answer, without its tokens."""

    tokens: int
    versions: tuple[int, int]
    """The versions of its first and of its last token."""
    generated_at: float
    reward: float | None
    verify_s: dict[str, float]
    """Time of each verifier."""


class TrackedAttempt(Message, frozen=True, kw_only=True):
    """The attempt that ended a draw, with wall times in seconds; 0: not known."""

    draw: int
    attempt: int
    row: str
    actor: str
    outcome: str
    cause: str
    step: int | None
    """The step that trains it."""
    queued_at: float
    started_at: float
    finished_at: float
    ended_at: float
    """When it was filtered, failed or put into a batch."""
    completions: list[TimedCompletion]


Record = TrackedLine | TrackedAttempt


class Taken(Message, frozen=True, kw_only=True):
    """The answer to a record, and to the end of the records."""

    lost: int = 0
    """Records that were lost since the answer before."""
    kept: int = 0
    """Records that the process has not passed on yet."""


def attempt_of(ended: Ended) -> TrackedAttempt:
    """The attempt of a draw that ended now."""
    result = ended.result
    group = result if isinstance(result, Group) else None
    return TrackedAttempt(
        draw=result.prompt.draw_id,
        attempt=result.prompt.attempt,
        row=result.prompt.row,
        actor=result.actor,
        outcome=str(ended.outcome),
        cause=ended.cause,
        step=ended.step,
        queued_at=result.prompt.queued_at,
        started_at=group.started_at if group else 0.0,
        finished_at=group.finished_at if group else 0.0,
        ended_at=time.time(),
        completions=[_timed(completion) for completion in group.completions] if group else [],
    )


def _timed(completion: Completion) -> TimedCompletion:
    spans = completion.spans
    return TimedCompletion(
        tokens=len(completion.token_ids),
        versions=(spans[0].version.number, spans[-1].version.number) if spans else (-1, -1),
        generated_at=completion.generated_at,
        reward=completion.reward,
        verify_s={name: verdict.seconds for name, verdict in completion.verdicts.items()},
    )
