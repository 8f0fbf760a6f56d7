"""The learning rate as a pure function of the step, so that no checkpoint has to save it."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

from olmorl.config import Learner


def learning_rate(step: int, learner: Learner, steps: int) -> float:
    """Rate of learner step `step` (from 1) of `steps`.

    It rises over `warmup_steps` to the full rate, then stays, or falls towards 0: the step after the last would have 0.
    In a run that was extended, it goes on from the rate of the last step before.
    """
    return _extended(step, learner, [stage.split() for stage in (learner.extended or "").split(", ") if stage], steps)


def _extended(step: int, learner: Learner, stages: Sequence[Sequence[str]], steps: int) -> float:
    """The rate after extensions, from the first to the last: each is `keep` or `decay`, and the steps before it."""
    if not stages:
        return _rate(step, learner, steps)
    *earlier, (kind, number) = stages
    before = int(number)
    if step <= before or before >= steps:
        return _extended(step, learner, earlier, min(before, steps))
    last = _extended(before, learner, earlier, before)
    return last if kind == "keep" else last * _shape(learner, (step - before) / (steps - before + 1))


def _rate(step: int, learner: Learner, steps: int) -> float:
    if step <= learner.warmup_steps:
        return learner.learning_rate * step / learner.warmup_steps
    done = (step - 1 - learner.warmup_steps) / max(steps - learner.warmup_steps, 1)
    return learner.learning_rate * _shape(learner, min(done, 1.0))


def _shape(learner: Learner, done: float) -> float:
    shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": (1.0 + cos(pi * done)) / 2}
    return shape[learner.schedule]
