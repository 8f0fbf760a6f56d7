"""Every metric: its name, its meaning, its labels. Other programs read the names, so their meaning never changes.

A field of `metrics.jsonl` has the same name in Prometheus, with the prefix `olmorl_` and base units: `prometheus_name`.
The end of a name tells the kind and the unit: `_total` is a counter, `_s` are seconds, `_ratio` and `_fraction` are
from 0 to 1. Tokens are completion tokens, unless the name says prompt tokens. Every series has the labels `run` and
`process`. The labels named here are added to them. `MOST_LABEL_VALUES` bounds the values of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

MOST_LABEL_VALUES: Final = 64
"""Most values of one label of one metric. Further values become `other`."""

SCORED: Final = {
    "reward_mean": "Mean reward of all completions scored since the last step, before filtering.",
    "reward_std": "Standard deviation of these rewards.",
    "solve_rate_mean": "Mean over these groups of the share of solved completions.",
    "completion_tokens_mean": "Mean length of these completions.",
    "completion_tokens_max": "Length of the longest of these completions.",
    "truncated_fraction": "Share of these completions that reached the length limit.",
}
"""Counted by the orchestrator over all scored training groups since the last line, before filtering."""

TOTALS: Final = {
    "prompts_drawn_total": "Draws from the data.",
    "groups_trained_total": "Draws whose group was trained.",
    "groups_zero_gradient_total": "Draws whose group was filtered because all rewards were equal.",
    "groups_stale_total": "Draws that became too old, or were left over at the end of the data.",
    "groups_failed_total": "Draws that ended without a scored group.",
    "groups_in_flight": "Draws without an outcome, counted in the queue and the journal.",
    "draws_unaccounted": "Draws that are neither ended nor in flight. Always 0.",
    "duplicates_refused_total": "Commits that the queue refused as late or duplicate.",
    "tokens_generated_total": "Generated tokens of all draws that ended, and of lost attempts.",
    "tokens_trained_total": "Tokens that fed the loss.",
    "tokens_zero_gradient_total": "Tokens of groups that were filtered.",
    "tokens_stale_total": "Tokens of draws that became too old.",
    "tokens_masked_total": "Tokens of trained groups that did not feed the loss.",
    "tokens_failed_total": "Tokens of failed draws.",
    "tokens_lost_total": "Tokens of attempts without a stored result, dead actors included.",
    "tokens_wasted_total": "Tokens of stale and failed draws and of lost attempts.",
    "tokens_evaluation_total": "Tokens of evaluation answers. They are in no other count.",
    "prompt_tokens_total": "Prompt tokens of the scored groups, once for each group.",
}
"""Totals of the current history, in draws and completion tokens. The parts `tokens_<outcome>_total` without evaluation
add up to `tokens_generated_total`."""

LEARNER: Final = {
    "loss": "Loss of the step.",
    "grad_norm": "Norm of the gradient before clipping.",
    "lr": "Learning rate.",
    "clip_fraction_low": "Share of tokens clipped at the lower bound of the ratio.",
    "clip_fraction_high": "Share of tokens clipped at the upper bound of the ratio.",
    "tis_clip_fraction": "Share of tokens whose importance weight was capped or masked.",
    "tis_clip_fraction_answers": "The same of each answer, as a mean over the answers.",
    "importance_ess_fraction": "Effective sample size of the importance weights over the number of tokens.",
    "importance_ess_fraction_answers": "The same of the mean weights of answers, over the number of answers.",
    "outlier_threshold": "Log-ratio (nats) above which a stale token counts for the other tokens of its answer, for "
    "the next step.",
    "outlier_tokens_mean": "Stale tokens above the threshold of this step, over the answers with stale tokens.",
    "logprob_diff_mean": "Mean difference of log-probabilities, learner minus engine.",
    "logprob_diff_mean_fresh": "The same over tokens of lag 0.",
    "kl_engine_learner": "Estimate (k3) of the divergence of the learner from the engine.",
    "kl_engine_learner_fresh": "The same over tokens of lag 0: rounding, and older keys in the cache.",
    "kl_engine_learner_answers": "The divergence from the engine in nats an answer, by the same estimate.",
    "entropy_mean": "Mean entropy of the policy over the trained tokens.",
    "learner_step_s": "Time of the step, without waiting for its batch.",
    "learner_flops": "Operations that the step needed over all ranks, without recomputation and padding.",
    "learner_peak_flops_per_s": "Operations per second of which all ranks are capable.",
    "learner_wait_s": "Time that the learner waited for the batch.",
    "learner_forward_backward_s": "Time of the step in forward and backward passes.",
    "learner_optimizer_s": "Time of the step in the optimizer.",
    "learner_snapshot_s": "Time to copy the new weights of the first rank to host memory, and to score the probe.",
    "learner_publish_wait_s": "Time that the learner waited for the publishing of the version before.",
}
"""Reported by the learner for a step, over all its ranks (`StepReport.values`). Times are rank 0's."""

STEP: Final = {
    "step": "Learner steps done.",
    "incarnation": "Start of the learner that took the step.",
    "version": "Policy version that the step made.",
    "wall_s": "Time since the run began, without the time between two starts.",
    "batch_reward_mean": "Mean reward of the trained groups.",
    "batch_completion_tokens_mean": "Mean length of its completions. Below `completion_tokens_mean`, long ones starve.",
    "batch_groups": "Groups of the batch.",
    "batch_tokens": "Tokens of the batch.",
    "batch_tokens_not_finite": "Tokens of the batch without a finite log-probability in the engine. They are masked.",
    "draws_per_trained_group": "Draws that ended while the batch was filled, over its groups.",
    "actor_tokens_per_s": "Tokens that all actors generated, over wall time.",
    "useful_tokens_per_s": "Tokens that fed the loss, over wall time.",
    "weight_publish_s": "Time to publish the newest version, in the background.",
    "learner_publish_fraction": "Share of snapshot, probe and wait for the publisher in the learner's time, the wait "
    "for batches apart.",
    "weight_stall_s_mean": "Mean stall of an engine by a weight update.",
    "weight_stall_s_max": "Longest stall of an engine by a weight update.",
    "weight_proof_diff_mean": "Mean difference, engine and learner, of the log-probabilities of fixed tokens.",
    "weight_proof_diff_max": "Largest of these differences of one update.",
    "weight_proof_s_mean": "Mean time until an engine had scored these tokens, while it went on generating.",
    "weight_proof_fraction": "Share of the engines' time that scoring them took: their share of the tokens of a step.",
    "lag_mean": "Mean lag of the trained tokens, in versions.",
    "lag_max": "Greatest lag of a trained token, in versions.",
    "engines": "Engines that were up at the end of the step.",
    "engine_slots": "Sequences that all engines can run at the same time, as their KV caches allow. A mean over time.",
    "engine_busy_fraction": "Share of the time of the engines with at least one running sequence.",
    "engine_slots_fraction": "Share of the slots of the engines in use, over time.",
    "learner_mfu": "Operations of the step, over those of which the ranks were capable while they did not wait.",
    "engine_mfu": "Operations of the engines' tokens, over those of which their devices were capable.",
    "engine_mbu": "Bytes of weights and KV cache that the engines moved, over those of which they were capable.",
    "engine_capacity_tokens_per_s": "Tokens that all engines would generate per second with all slots in use.",
    "sequences_awaiting_weights": "Leased sequences that wait for a version. A mean over time.",
    "sequences_awaiting_verdicts": "Finished sequences without their verdicts. A mean over time.",
    "sequences_awaiting_group": "Verified sequences whose group is not finished. A mean over time.",
    "sequences_awaiting_environment": "Episodes that wait for their environment or agent. A mean over time.",
    "groups_ready": "Finished groups that wait for a step. A mean over time.",
    "data_ended": "1 when the data has no further row to draw.",
}
"""The other fields of every line."""

ALWAYS: Final = (*STEP, *SCORED, *TOTALS, *LEARNER)
"""Fields of every line. Some lines have more: `kl_ref_mean`, and the fields of `FAMILIES`."""

ACTOR: Final = {
    "tokens_generated_total": "Tokens that the engine sampled, of unfinished answers too.",
    "tokens_wasted_total": "Tokens of lost attempts and of aborted answers.",
    "completions_total": "Completions that were verified.",
    "sequences_running": "Sequences that the engine computes.",
    "sequences_waiting": "Sequences that the engine has accepted and not begun.",
    "kv_cache_used_ratio": "Share of the KV cache in use.",
    "engine_up_s_total": "Time since the engine started.",
    "engine_busy_s_total": "Time with at least one running sequence. Over the time since its start: its busy share.",
    "engine_running_s_total": "Seconds of all running sequences, summed over them.",
    "engine_slots_s_total": "Seconds of all slots of the engine, summed over them. The KV cache limits the slots too.",
    "sequences_awaiting_weights_s_total": "Seconds of leased sequences that wait for a version, summed over them.",
    "sequences_awaiting_verdicts_s_total": "Seconds of finished sequences without verdicts, summed over them.",
    "sequences_awaiting_group_s_total": "Seconds of verified sequences that wait for their group, summed over them.",
    "sequences_awaiting_environment_s_total": "Seconds of episodes that wait for their environment, summed over them.",
    "engine_flops_total": "Operations that the tokens of the engine needed.",
    "engine_moved_bytes_total": "Bytes of weights and KV cache that the steps of the engine moved.",
    "engine_peak_flops_per_s": "Operations per second of which its devices are capable; 0: not known.",
    "engine_peak_bytes_per_s": "Bytes per second that its devices can move; 0: not known.",
    "weight_updates_total": "Versions that the engine applied in flight.",
    "weight_update_failures_total": "Failed tries to fetch or apply a version.",
    "weight_stall_s_total": "Time that weight updates stalled the engine.",
    "weight_stall_s_max": STEP["weight_stall_s_max"],
    "weight_proofs_total": "Versions whose log-probabilities of fixed tokens were compared with the learner's.",
    "weight_proof_diff_max": STEP["weight_proof_diff_max"],
    "weight_proof_s_total": "Time until these tokens had been scored.",
    "weight_proof_engine_s_total": "The part of the time of the engine's steps that went into scoring them.",
    "verifier_s_total": "Time that verdicts took.",
    "commits_late_total": "Results that the queue refused because their lease had expired.",
    "commits_duplicate_total": "Results that the queue refused because their draw was done.",
    "policy_version": "Policy version that computes the next token; -1 before the first.",
    "verifier_queue_depth": "Checks that wait for a worker.",
    "verifier_checks_total": "Checks that workers did.",
    "verifier_busy_s_total": "Time that workers worked on checks.",
    "verifier_kills_total": "Workers that were killed at a deadline.",
    "verifier_starts_total": "Workers that were started.",
    "verifier_cpu_s_total": "Processor time of sandboxed programs.",
    "verifier_outcomes_total": "Checks by how they ended: `done`, `limit`, or a kind of error.",
    "verifier_calls_total": "Requests to the service of a judge, reward model or teacher.",
    "verifier_retries_total": "Requests that were sent again after a failure.",
    "verifier_openings_total": "How often the circuit breaker of a service opened.",
    "verifier_breaker_open": "1 while the circuit breaker of a service is open.",
    "verifier_cache_hits_total": "Answers of a service that were known already.",
    "episodes_total": "Episodes that began, each try of them.",
    "episode_failures_total": "Tries of episodes that their environment or agent failed. They are never scored.",
    "environment_processes": "Processes of environments, or commands of agents, that run.",
    "tool_calls_total": "Calls of tools of environments.",
    "tool_errors_total": "Those of them whose result was an error, or that gave none.",
    "tool_s_total": "Time that these calls took.",
}
"""Exported by each actor. Those that begin with `verifier_` have the label `part`, and the outcomes `kind` too; those
that begin with `tool_` have the label `tool`."""

LAUNCHER: Final = {
    "actors_wanted": "Actors that the run should have.",
    "actors_running": "Actors that have a process.",
    "actors_serving": "Actors whose engine has started and answers.",
    "actors_quarantined": "Actors that are not started again.",
    "engine_devices": "GPUs of one engine; without GPUs 1, its core.",
    "actor_deaths_total": "Actors that died.",
    "learner_restarts_total": "Restarts of the learner.",
    "run_failed": "1 once the run has ended with an error. A launcher that is scraped shows it until the next scrape.",
    "prompts_queued": "Prompts that wait for an actor.",
    "prompts_leased": "Prompts that actors work on.",
    "results_waiting": "Results that wait for their outcome.",
    "since_step_s": "Time since the launcher saw the last new step, or since it began.",
    "step_period_s_median": "Median time between the last steps, at most 32; 0 before the second step.",
    "steps_wanted": "Steps of the whole run, `schedule.steps`.",
    "steps_since_checkpoint": "Steps since the newest complete checkpoint.",
    "checkpoint_every_steps": "Steps between two checkpoints, `checkpoint.every`.",
    "disk_free_ratio": "Free share of the file system that holds the run.",
    "limit": "1 for what limits the run, 0 for the others. By limit; `balanced`: learner and actors both work.",
    "limit_sure_ratio": "How sure that is.",
    "balanced_actors_per_learner": "Actor nodes for each learner node at which neither would wait for the other.",
    "planned_actors_per_learner": "Actor nodes for each learner node that the recipe asks for.",
    "lag_bound": "The greatest lag that is allowed, `schedule.max_lag`.",
}
"""Exported by the launcher."""

ORCHESTRATOR: Final = {
    "tracking_dropped_total": "Lines and traces that the tracker or the collector did not take in time.",
}
"""Exported by the orchestrator, in addition to the fields of its lines."""

REDIS: Final = {
    "redis_memory_bytes": "Resident memory of the embedded Redis.",
    "redis_host_memory_bytes": "Memory of the host of the embedded Redis.",
}
"""Exported by the process of the embedded Redis."""

RANK: Final = {
    "rank_step": "Step that the rank got last.",
    "rank_wait_s_total": "Time that the rank waited for steps.",
    "rank_busy_s_total": "Time that the rank worked on steps.",
}
"""Exported by each rank of the learner."""

SOMETIMES: Final = {
    "kl_ref_mean": "Estimate of the divergence of the policy from the reference.",
    "kl_beta": "Weight of that divergence in the loss or in the reward.",
    "critic_loss": "Loss of the critic, mean over its updates.",
    "critic_grad_norm": "Norm of the critic's gradient before clipping, mean over its updates.",
    "teacher_kl_mean": "Estimate (k1) of the divergence of the policy from its teachers, in nats a token.",
    "teacher_kl_answers": "The same in nats an answer.",
    "episode_turns_mean": "Mean number of turns of the episodes scored since the last step.",
    "episode_between_turns_s_mean": "Mean time of these episodes between turns, with their environment or agent.",
    "episode_s_mean": "Mean time of these episodes from their first request to their last token.",
    "batch_episode_turns_mean": "Mean number of turns of the trained episodes.",
    "batch_episode_between_turns_s_mean": "Mean time of the trained episodes between turns.",
    "batch_episode_s_mean": "Mean time of the trained episodes. Below `episode_s_mean`, slow ones starve.",
    "value_explained_fraction": "Share of the variance of the returns that the critic's values explain; 1 is all.",
}

HELP: Final = STEP | SCORED | TOTALS | LEARNER | SOMETIMES | ACTOR | LAUNCHER | ORCHESTRATOR | REDIS | RANK
"""The meaning of each metric whose name has no placeholder."""


class Family(NamedTuple):
    """Fields of a line that differ in one part of their name. In Prometheus that part is a label."""

    pattern: str
    """The field; `{}` is the part."""
    name: str
    """The Prometheus metric, without its prefix. `_total`: a counter of the values of all lines."""
    label: str
    help: str
    parts: tuple[str, ...] = ()
    """The only allowed parts. Empty: any part."""

    @property
    def is_history(self) -> bool:
        """Whether the fields are totals of the history, and not the counts of one line."""
        return self.pattern.endswith("_total")

    def part(self, field: str) -> str | None:
        """The part of a field that belongs to the family; None for other fields."""
        part = _between(field, self.pattern)
        return part if part and (not self.parts or part in self.parts) else None


OUTCOMES: Final = ("trained", "zero_gradient", "stale", "masked", "failed", "lost", "evaluation")
"""Where generated tokens end. Each token has one outcome."""

_PARTS: Final = {
    "groups": ("groups_total", "Scored groups, before filtering."),
    "failed": ("groups_failed_total", "Draws that failed."),
    "solve_rate_mean": ("solve_rate_mean", "Mean share of solved completions of the groups since the last step."),
    "completion_tokens_mean": ("completion_tokens_mean", "Mean length of the completions since the last step."),
    "truncated_fraction": ("truncated_fraction", "Share of these completions that reached the length limit."),
}
_OF = {"verifier": " By verifier.", "source": " By data source: a file or a hub set."}

FAMILIES: Final = (
    Family("tokens_{}_total", "tokens_by_outcome_total", "outcome", "Tokens by where they ended.", OUTCOMES),
    *(
        Family(f"{of}_{{}}_{field}", f"{of}_{name}", of, about + by)
        for of, by in _OF.items()
        for field, (name, about) in _PARTS.items()
    ),
    Family("reward_{}_mean", "verifier_reward_mean", "verifier", "Mean reward since the last step. By verifier."),
    Family("source_{}_reward_mean", "source_reward_mean", "source", "Mean reward since the last step." + _OF["source"]),
    Family(
        "source_{}_teacher_kl_mean", "source_teacher_kl_mean", "source", "Nats a token from teachers." + _OF["source"]
    ),
    Family("source_{}_teacher_kl_answers", "source_teacher_kl_answers", "source", "Nats an answer." + _OF["source"]),
    Family("failures_{}", "failures_total", "cause", "Draws that failed. By cause."),
    Family("exits_{}", "exits_total", "exit", "Scored episodes. By the way in which they ended."),
)
"""The labelled metrics that come from lines. A field belongs to the first family that fits it."""

FLAT: Final = {
    "reward_{}_mean": "Mean reward that a verifier gave since the last step.",
    "reward_{}_std": "Standard deviation of the rewards that a verifier gave since the last step.",
    "logged_{}": "Mean over groups of a value that a user function logged.",
    "eval_{}": "A result of the newest evaluation of a set.",
}
"""Fields that keep their whole name in Prometheus too, because users name the sets, functions and values."""

_PRECISION: Final = 0.05
"""Widest bucket over its upper bound: the greatest error of a quantile that Prometheus makes of the buckets."""


def _whole_bounds(last: int) -> tuple[float, ...]:
    """Bounds for whole numbers, among them all powers of two. Each small number has a narrow bucket of its own."""
    small = range(1, round(1 / _PRECISION))
    bounds = [0, *(bound for number in small for bound in (round(number * (1 - _PRECISION), 2), number))]
    while bounds[-1] < last:
        widest = max(bounds[-1] + 1, floor(bounds[-1] / (1 - _PRECISION)))
        bounds.append(min(widest, 2 ** int(bounds[-1]).bit_length()))
    return tuple(bounds)


def _second_bounds(first: int, last: int) -> tuple[float, ...]:
    """Bounds from `10 ** first` to `10 ** last` seconds, among them all powers of ten."""
    a_decade = ceil(-1 / log10(1 - _PRECISION))
    return tuple(float(f"{10 ** (i / a_decade):.5g}") for i in range(first * a_decade, last * a_decade + 1))


_TOKENS = _whole_bounds(2**17)
_VERSIONS = _whole_bounds(2**6)
_SECONDS = _second_bounds(-4, 4)


class Histogram(NamedTuple):
    """A distribution of one value for each completion, group or token."""

    help: str
    buckets: tuple[float, ...]
    """Upper bounds, inclusive."""
    labels: tuple[str, ...] = ()


HISTOGRAMS: Final = {
    "completion_tokens": Histogram("Length of the completions of draws that ended.", _TOKENS),
    "token_lag_versions": Histogram("Lag of each token of the groups that a step took.", _VERSIONS),
    "kv_cache_age_versions": Histogram("Versions between the first and the last token of a completion.", _VERSIONS),
    "queue_s": Histogram("Time from the draw of a prompt until an engine began it.", _SECONDS),
    "group_s": Histogram("Time from the first token of a group until its last verdict.", _SECONDS),
    "verification_s": Histogram("Time that one verdict took.", _SECONDS, ("verifier",)),
}
"""Distributions since the start of the orchestrator, over the training draws that ended with a group."""

_UNITS = (
    ("_s_mean", "_seconds_mean"),
    ("_s_max", "_seconds_max"),
    ("_s_median", "_seconds_median"),
    ("_s_total", "_seconds_total"),
    ("_per_s", "_per_second"),
)


def prometheus_name(name: str) -> str:
    """The Prometheus name of a metric."""
    name = re.sub(r"\W", "_", name)
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return f"olmorl_{name.removesuffix(ending)}{unit}"
    return f"olmorl_{name[:-2]}_seconds" if name.endswith("_s") else f"olmorl_{name}"


@lru_cache(4096)  # a resume asks for each field of each line
def family_of(field: str) -> tuple[Family, str] | None:
    """The labelled metric of a field, and the value of its label; None for other fields."""
    return next(((family, part) for family in FAMILIES if (part := family.part(field))), None)


def meaning(name: str) -> str | None:
    """The help text of a metric that keeps its name in Prometheus; None for names that are not in this file."""
    return HELP.get(name) or next((about for pattern, about in FLAT.items() if _between(name, pattern)), None)


def _between(text: str, pattern: str) -> str:
    """The part of `text` at the place of `{}`; empty when `text` does not fit the pattern."""
    begin, _, end = pattern.partition("{}")
    fits = text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end)
    return text[len(begin) : len(text) - len(end)] if fits else ""


def of_evaluation(line: Mapping[str, T]) -> dict[str, T]:
    """The evaluation fields of a metric line."""
    return {key: value for key, value in line.items() if key.startswith("eval_")}


def evaluated_versions(line: Mapping[str, Any], field: str) -> tuple[int | None, int | None, int | None]:
    """The version that the evaluation of a field measured, and the oldest and newest that answered it.

    None where the line has none. A part of a set has the versions of the set.
    """
    name = field
    while name.startswith("eval_"):
        asked, oldest, newest = (line.get(f"{name}_version{end}") for end in ("", "_oldest", "_newest"))
        if asked is not None or newest is not None:
            return asked, oldest, newest
        name = name.rpartition("_")[0]
    return None, None, None


def answered_by(line: Mapping[str, Any], field: str) -> str:
    """The versions that answered the evaluation of a field, such as `0-6`; empty where the line has none."""
    _, oldest, newest = evaluated_versions(line, field)
    if newest is None:
        return ""
    return str(newest) if oldest in (None, newest) else f"{oldest}-{newest}"
