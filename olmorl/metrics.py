"""Names of the fields of `metrics.jsonl`. Other programs read them, so their meaning never changes.

The Prometheus names have the prefix `olmorl_` and base units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

# Counted by the orchestrator over all scored training groups since the last line, before filtering.
SCORED = (
    "reward_mean",
    "reward_std",
    "solve_rate_mean",
    "completion_tokens_mean",
    "completion_tokens_max",
    "truncated_fraction",
)

# Totals of the current history, in draws and completion tokens.
TOTALS = (
    "prompts_drawn_total",
    "groups_trained_total",
    "groups_zero_gradient_total",
    "groups_stale_total",
    "groups_failed_total",
    "groups_in_flight",
    "duplicates_refused_total",
    "tokens_generated_total",
    "tokens_trained_total",
    "tokens_wasted_total",
)

# Reported by the learner for a step, over all its ranks (`StepReport.values`).
LEARNER = (
    "loss",
    "grad_norm",
    "lr",
    "clip_fraction_low",
    "clip_fraction_high",
    "tis_clip_fraction",
    "logprob_diff_mean",
    "logprob_diff_mean_fresh",
    "kl_engine_learner",
    "kl_engine_learner_fresh",
    "entropy_mean",
    "learner_step_s",
    "learner_wait_s",
)

# The other fields of every line.
STEP = (
    "step",
    "incarnation",
    "version",
    "wall_s",
    "batch_reward_mean",
    "batch_groups",
    "batch_tokens",
    "actor_tokens_per_s",
    "useful_tokens_per_s",
    "weight_publish_s",
    "weight_stall_s_mean",
    "weight_stall_s_max",
    "weight_proof_diff_mean",
    "weight_proof_diff_max",
    "weight_proof_s_mean",
    "lag_mean",
    "lag_max",
)

ALWAYS = (*STEP, *SCORED, *TOTALS, *LEARNER)
"""Fields of every line. Some lines have more: `reward_<verifier>_mean` and `_std`, `logged_<name>_mean` (logged by user
functions), `kl_ref_mean`, and `eval_<name>_*`, for instance `eval_<name>_<verifier>_mean` and
`eval_<name>_logged_<name>_mean`."""


def of_evaluation(line: Mapping[str, T]) -> dict[str, T]:
    """The evaluation fields of a metric line."""
    return {key: value for key, value in line.items() if key.startswith("eval_")}
