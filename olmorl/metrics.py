"""Names of the fields of `metrics.jsonl`. Other programs read these: they never change their meaning.

Prometheus names are the same with the prefix `olmorl_` and base units.
"""

from __future__ import annotations

# What the assembler counts over all scored training groups since the last line, before filtering.
SCORED = (
    "reward_mean",
    "reward_std",
    "solve_rate_mean",
    "completion_tokens_mean",
    "completion_tokens_max",
    "truncated_fraction",
)

# Totals of the surviving history, in draws and completion tokens.
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

# What the learner says of a step, global over its ranks (`StepReport.values`).
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

# The rest of a line.
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
    "lag_mean",
    "lag_max",
)

ALWAYS = (*STEP, *SCORED, *TOTALS, *LEARNER)
"""Fields of every line. Beside them: `reward_<verifier>_mean` and `_std`, `eval_<name>_*`, `kl_ref_mean` if used."""
