"""Defines the section `[simulation]`: for tests, `olmorl-plan` and `run.mode = "simulated"`, not for training.

A recipe may have it. The reference of the keys does not list it.
"""

from __future__ import annotations

from pydantic import Field

from olmorl.keys import Section


class Simulation(Section):
    """Speeds of the fake engine and the fake trainer (`run.mode = "simulated"`)."""

    tokens_per_s: float = Field(50.0, gt=0)
    """Tokens per second of a sequence that runs alone."""
    batch_slowdown: float = Field(0.01, ge=0)
    """Share by which each additional sequence slows a step."""
    mean_tokens: float = Field(120.0, gt=0)
    """Mean length of a completion. Lengths are log-normal."""
    turns: int = Field(1, ge=1)
    """Answers of an episode, each of them of `mean_tokens`."""
    tool_s: float = Field(0.0, ge=0)
    """Seconds of a tool after each answer of an episode."""
    tail: float = Field(0.7, ge=0)
    """Sigma of the log-normal length."""
    solve_rate: float = Field(0.5, ge=0, le=1)
    """Probability of a right completion at the start, for a prompt of average difficulty."""
    prompt_spread: float = Field(1.5, ge=0)
    """Standard deviation of the log-odds of a right completion between prompts."""
    learned_per_version: float = 0.1
    """Rise of the log-odds of a right completion with each version."""
    train_tokens_per_s: float = Field(20000.0, gt=0)
    """Tokens per second of a learner rank."""
    train_overhead_s: float = Field(0.0, ge=0)
    """Seconds of a learner step that do not depend on its tokens."""
    verify_s: float = Field(0.0, ge=0)
    """Seconds until a completion has its verdicts."""
    publish_s: float = Field(0.0, ge=0)
    """Seconds until an actor sees a version after the learner has made it. Only `olmorl-plan` uses it."""
    update_s: float = Field(0.02, ge=0)
    """Stall of an engine during an update."""
    recompute_tokens_per_s: float = Field(10_000.0, gt=0)
    """Tokens per second at which an engine computes its KV cache again (`actors.weight_update = "recompute"`)."""
    save_s: float = Field(0.5, ge=0)
    """Time to write one rank's share of a checkpoint."""
