"""Draws that ended, with two answers or with a failure."""

from __future__ import annotations

import numpy as np

from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Completion, Failure, Group, Prompt, Span, Verdict, Version


def ended(draw: int = 7, outcome: Outcome = Outcome.TRAINED, step: int | None = 6, cause: str = "") -> Ended:
    """A draw of two answers, of 3 and 40 tokens, that was drawn at 90, leased at 100 and committed at 104."""
    prompt = Prompt(
        draw_id=draw,
        attempt=2,
        row="math.jsonl:1",
        messages="6 x 7?",
        token_ids=np.zeros(2, np.int32),
        datasets=("math",),
        ground_truths=("42",),
        queued_at=90.0,
        group_size=2,
        min_version=Version(1, 2),
    )
    if outcome is Outcome.FAILED:
        return Ended(Failure(prompt=prompt, cause=cause, actor="actor-3"), outcome, None, cause)
    first = _answer(0, 101.5, (Span(Version(1, 2), 0, 2), Span(Version(1, 4), 2, 3)))
    second = _answer(1, 103.0, (Span(Version(1, 5), 0, 40),))
    group = Group(prompt=prompt, completions=(first, second), actor="actor-3", started_at=100.0, finished_at=104.0)
    return Ended(group, outcome, step, cause)


def _answer(index: int, generated_at: float, spans: tuple[Span, ...]) -> Completion:
    num_tokens = spans[-1].end
    return Completion(
        index=index,
        token_ids=np.zeros(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        spans=spans,
        finish_reason="stop",
        text="42",
        verdicts={"math": Verdict(reward=1.0, seconds=0.25)},
        reward=1.0,
        generated_at=generated_at,
    )
