"""Ten numbers of a metric line, made again from the tables of the run."""

from __future__ import annotations

from typing import Any

from olmorl.deploy.run_tables import RunTables


def of_step(tables: RunTables, step: int) -> dict[str, Any]:
    """The numbers of the line of a step, by their names there."""
    answers = tables.answers.to_pandas()
    train = answers[answers.evaluation.isna()]
    scored, batch = train[train.filed == step], train[train.step == step]
    rewards = scored.reward.dropna()
    return {
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(ddof=0),
        "batch_reward_mean": batch.reward.mean(),
        "batch_groups": batch.draw.nunique(),
        "batch_tokens": batch.tokens.sum(),
        "lag_max": step - 1 - batch.oldest_version.min(),
        "completion_tokens_mean": scored.tokens.mean(),
        "completion_tokens_max": scored.tokens.max(),
        "truncated_fraction": (scored.finish_reason == "length").mean(),
        "groups_trained_total": train[train.step <= step].draw.nunique(),
    }
