"""The figures of a run, from its metric lines. They are the same for simulated and real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from olmorl.config import Config

COUNTED_KEYS = (
    "wall_s",
    "tokens_generated_total",
    "tokens_trained_total",
    "batch_tokens",
    "learner_wait_s",
    "learner_step_s",
    "lag_mean",
    "lag_max",
)
"""Fields of a metrics line that the figures and the rates of a run need."""
Lines = Sequence[Mapping[str, Any]]


class Figures(NamedTuple):
    """Means over the counted steps."""

    step_s: float
    """Seconds from step to step."""
    train_s: float
    """Seconds of a step in which the learner does not wait for a batch."""
    wait: float
    """Share of the time in which the learner waits for a batch."""
    generated_per_s: float
    """Completion tokens per second of all engines."""
    trained_per_s: float
    """Completion tokens per second that feed the loss."""
    lag: float
    """Mean over tokens, in versions."""
    lag_max: int
    wasted: float
    """Share of the generated tokens that are not trained: groups without a gradient, stale and failed ones."""


def warm_up(settings: Config) -> int:
    """Steps at the start of a run that are not counted: the engines start empty and with fresh tokens."""
    return settings.schedule.batches_ahead + 2


def figures_of(lines: Lines, skipped: int) -> Figures:
    """The figures of the lines after the first `skipped`, which are 1 or more."""
    before, counted = lines[skipped - 1], lines[skipped:]
    seconds = counted[-1]["wall_s"] - before["wall_s"]
    generated = counted[-1]["tokens_generated_total"] - before["tokens_generated_total"]
    trained = counted[-1]["tokens_trained_total"] - before["tokens_trained_total"]
    tokens = sum(line["batch_tokens"] for line in counted)
    waited = sum(line["learner_wait_s"] for line in counted)
    return Figures(
        step_s=seconds / len(counted),
        train_s=(seconds - waited) / len(counted),
        wait=waited / seconds,
        generated_per_s=generated / seconds,
        trained_per_s=trained / seconds,
        lag=sum(line["lag_mean"] * line["batch_tokens"] for line in counted) / tokens,
        lag_max=max(line["lag_max"] for line in counted),
        wasted=1 - trained / generated,
    )
