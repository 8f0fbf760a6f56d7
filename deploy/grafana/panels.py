"""The panels of the Grafana boards: the queries of each, and what good looks like."""

from __future__ import annotations

from typing import Final, NamedTuple

from olmorl.metrics import prometheus_name

LEARNER = 'run="$run",process="orchestrator"'
LAUNCHER = 'run="$run",process="launcher"'
RANKS = 'run="$run",process=~"learner.*"'
ACTORS = 'run="$run",process=~"$actor"'
ALL_ACTORS = 'run="$run",process=~"actor.*"'
RUN = 'run="$run"'
WINDOW = "${window}s"
"""The window of what moves once a step: the variable of the boards that follows the step time."""


class Query(NamedTuple):
    """One or more lines of a panel."""

    expr: str
    legend: str = ""
    waits_for: str = ""
    """The event before which it has no data; empty: it always has."""


class GrafanaPanel(NamedTuple):
    """One panel: a time series, or a number."""

    title: str
    good: str
    """The values of a healthy run."""
    queries: tuple[Query, ...]
    unit: str = "short"
    is_number: bool = False
    shows_name: bool = False
    """Whether a number is shown as the name of its line."""
    stacked: bool = False


class GrafanaBoard(NamedTuple):
    """One dashboard."""

    uid: str
    title: str
    panels: tuple[GrafanaPanel, ...]


def _line(name: str, legend: str = "", waits_for: str = "") -> Query:
    """A field of `metrics.jsonl`."""
    return Query(f"{prometheus_name(name)}{{{LEARNER}}}", legend or name, waits_for)


def _rate(name: str, labels: str, window: str = "5m") -> str:
    return f"rate({prometheus_name(name)}{{{labels}}}[{window}])"


def _per_s(name: str) -> str:
    """The growth of a counter of `metrics.jsonl` per second of wall time.

    Both move with each line, so the quotient is that of whole steps wherever the window begins.
    """
    grown = f"increase({prometheus_name(name)}{{{LEARNER}}}[{WINDOW}])"
    return f"{grown} / on(run) group_left() delta(olmorl_wall_seconds{{{LEARNER}}}[{WINDOW}])"


def _quantiles(name: str, by: str = "") -> tuple[Query, ...]:
    """The median and the tail of a histogram, for each value of the label `by`."""
    labels, of = (f"le, {by}", f" of {{{{{by}}}}}") if by else ("le", "")
    buckets = f"sum by ({labels}) (rate({prometheus_name(name)}_bucket{{{RUN}}}[{WINDOW}]))"
    shares = ((0.5, "median"), (0.99, "99%"))
    return tuple(Query(f"histogram_quantile({share}, {buckets})", legend + of) for share, legend in shares)


_WAITED = f"olmorl_rank_wait_seconds_total{{{RANKS}}}"
_BUSY = f"olmorl_rank_busy_seconds_total{{{RANKS}}}"
_LINES = "the first steps"
_EVALUATION = "an evaluation"
_ENGINE = "a real engine"
_SERVICE = "a judge, a reward model or a teacher"
_TEACHER = "a teacher"
_FAILURE = "a draw that fails"

OVERVIEW = GrafanaBoard(
    "olmorl-overview",
    "OlmoRL: Overview",
    (
        GrafanaPanel("Steps done", "Grows without a break.", (_line("step"),), is_number=True),
        GrafanaPanel(
            "What limits the run",
            "`balanced`. Otherwise `olmorl-ctl RUN status` gives the reason and a remedy.",
            (Query(f"olmorl_limit{{{LAUNCHER}}} == 1", "{{limit}}", _LINES),),
            is_number=True,
            shows_name=True,
        ),
        GrafanaPanel(
            "Actor nodes for each learner node",
            "The run's own ratio is close to this one, at which neither waits for the other.",
            (Query(f"olmorl_balanced_actors_per_learner{{{LAUNCHER}}}", "at balance", _LINES),),
        ),
        GrafanaPanel(
            "Time since the last step",
            "Below three times the median of a step.",
            (
                Query(f"olmorl_since_step_seconds{{{LAUNCHER}}}", "now"),
                Query(f"olmorl_step_period_seconds_median{{{LAUNCHER}}}", "median"),
            ),
            "s",
        ),
        GrafanaPanel(
            "Time left",
            "Falls as fast as the clock runs.",
            (
                Query(
                    f"(olmorl_steps_wanted{{{LAUNCHER}}} - on(run) olmorl_step{{{LEARNER}}})"
                    f" * on(run) olmorl_step_period_seconds_median{{{LAUNCHER}}}"
                ),
            ),
            "s",
            is_number=True,
        ),
        GrafanaPanel(
            "Actors",
            "As many serve as are wanted. One that runs and does not serve is starting.",
            (
                Query(f"olmorl_actors_serving{{{LAUNCHER}}}", "serving"),
                Query(f"olmorl_actors_running{{{LAUNCHER}}}", "running"),
                Query(f"olmorl_actors_wanted{{{LAUNCHER}}}", "wanted"),
            ),
        ),
        GrafanaPanel(
            "Reward",
            "Rises. The trained groups stay near the middle, because solved and hopeless groups are filtered.",
            (_line("reward_mean", "all scored groups"), _line("batch_reward_mean", "trained groups")),
        ),
        GrafanaPanel(
            "Tokens a second",
            "In the last step trained is close to generated. The gap is the cost of filtering, failures and age.",
            (_line("actor_tokens_per_s", "generated"), _line("useful_tokens_per_s", "trained")),
        ),
        GrafanaPanel(
            "Share of the learner's time spent waiting",
            "Close to the plan's. Far above it: too few actors, or slow ones.",
            (
                Query(
                    f"increase({_WAITED}[{WINDOW}]) / (increase({_WAITED}[{WINDOW}]) + increase({_BUSY}[{WINDOW}]))",
                    "{{process}}",
                ),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Evaluations",
            "Accuracy rises with the reward. If only the reward rises, the policy exploits it.",
            (Query(f'{{__name__=~"olmorl_eval_.+_accuracy",{RUN}}}', "{{__name__}}", _EVALUATION),),
            "percentunit",
        ),
    ),
)

LEARNING = GrafanaBoard(
    "olmorl-learning",
    "OlmoRL: Learning",
    (
        GrafanaPanel("Loss", "Stays small: with one minibatch it says little of progress.", (_line("loss"),)),
        GrafanaPanel(
            "Gradient norm", "Steady, mostly below the clipping bound. Spikes are rare.", (_line("grad_norm"),)
        ),
        GrafanaPanel("Entropy", "Falls slowly. A sudden fall to zero ends exploration.", (_line("entropy_mean"),)),
        GrafanaPanel(
            "Clipped tokens",
            "A few percent. Much more: steps are too large or tokens too old.",
            (
                _line("clip_fraction_low", "ratio, low"),
                _line("clip_fraction_high", "ratio, high"),
                _line("tis_clip_fraction", "importance weight"),
                _line("tis_clip_fraction_answers", "importance weight, by answer"),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Effective sample size",
            "Close to 100%. Below 50%, few of the answers teach.",
            (
                _line("importance_ess_fraction", "of the tokens"),
                _line("importance_ess_fraction_answers", "of the answers"),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Engine against learner",
            "The fresh tokens stay near zero at any lag: only rounding separates them.",
            (_line("kl_engine_learner", "all tokens"), _line("kl_engine_learner_fresh", "tokens of lag 0")),
        ),
        GrafanaPanel(
            "Engine against learner, by answer",
            "Below 0.3 nats an answer without noise. A growing threshold: noise, or answers that drift everywhere.",
            (
                _line("kl_engine_learner_answers", "divergence, nats an answer"),
                _line("outlier_threshold", "threshold of outliers, nats a token"),
                _line("outlier_tokens_mean", "outliers of an answer, tokens"),
            ),
        ),
        GrafanaPanel(
            "Answer length",
            "Changes slowly. The longest stays below the limit for most steps.",
            (_line("completion_tokens_mean", "mean"), _line("completion_tokens_max", "longest")),
        ),
        GrafanaPanel(
            "Distribution of answer lengths",
            "Static batching would wait for the tail.",
            _quantiles("completion_tokens"),
        ),
        GrafanaPanel("Truncated answers", "Below 25%.", (_line("truncated_fraction"),), "percentunit"),
        GrafanaPanel(
            "Solve rate",
            "Between 20% and 80%: there is something to learn.",
            (_line("solve_rate_mean"),),
            "percentunit",
        ),
        GrafanaPanel("Learning rate", "As the recipe says.", (_line("lr"),)),
        GrafanaPanel(
            "Divergence from the teachers",
            "Falls, and stays where the policy cannot follow them. Nats a token.",
            (
                _line("teacher_kl_mean", "all answers", _TEACHER),
                Query(f"olmorl_source_teacher_kl_mean{{{LEARNER}}}", "{{source}}", _TEACHER),
            ),
        ),
        GrafanaPanel(
            "Phases of a step",
            "Forward and backward passes dominate.",
            (
                _line("learner_forward_backward_s", "forward, backward"),
                _line("learner_optimizer_s", "optimizer"),
                _line("learner_snapshot_s", "copy weights"),
                _line("learner_publish_wait_s", "wait for the publisher"),
                _line("learner_wait_s", "wait for the batch"),
            ),
            "s",
            stacked=True,
        ),
    ),
)

WEIGHTS = GrafanaBoard(
    "olmorl-weights",
    "OlmoRL: Weights and staleness",
    (
        GrafanaPanel(
            "Lag of trained tokens",
            "The mean is well below the bound.",
            (
                _line("lag_mean", "mean"),
                _line("lag_max", "greatest"),
                Query(f"olmorl_lag_bound{{{LAUNCHER}}}", "bound"),
            ),
        ),
        GrafanaPanel("Distribution of the lag", "Most tokens are young.", _quantiles("token_lag_versions")),
        GrafanaPanel(
            "Age of the KV cache",
            "Versions between the first and the last token of an answer. Grows with the length of answers.",
            _quantiles("kv_cache_age_versions"),
        ),
        GrafanaPanel("Publishing a version", "Shorter than a step.", (_line("weight_publish_s"),), "s"),
        GrafanaPanel(
            "Stall of the engines per update",
            "Tens of milliseconds: no request stops.",
            (_line("weight_stall_s_mean", "mean"), _line("weight_stall_s_max", "longest")),
            "s",
        ),
        GrafanaPanel(
            "Policy version of each actor",
            "All lines are close together and rise with the steps.",
            (Query(f"olmorl_policy_version{{{ACTORS}}}", "{{process}}"),),
        ),
        GrafanaPanel(
            "Failed updates",
            "None.",
            (Query(f"increase(olmorl_weight_update_failures_total{{{ACTORS}}}[5m])", "{{process}}"),),
        ),
    ),
)

LEDGER = GrafanaBoard(
    "olmorl-ledger",
    "OlmoRL: Queues and ledger",
    (
        GrafanaPanel(
            "Where draws end, per minute",
            "Mostly trained. Stale and failed stay near zero.",
            tuple(
                Query(f"60 * {_per_s(f'groups_{outcome}_total')}", outcome)
                for outcome in ("trained", "zero_gradient", "stale", "failed")
            ),
            stacked=True,
        ),
        GrafanaPanel(
            "Where tokens end, per second",
            "Mostly trained. The colours are a partition: each token has one.",
            (Query(f"sum by (outcome) ({_per_s('tokens_by_outcome_total')})", "{{outcome}}"),),
            stacked=True,
        ),
        GrafanaPanel(
            "Where device hours go, in the last hour",
            "Mostly trained. GPU hours of the engines, or core hours, divided as their tokens.",
            (
                Query(
                    f"sum by (run, outcome) (increase(olmorl_tokens_by_outcome_total{{{LEARNER}}}[1h]))"
                    f" / on(run) group_left() sum by (run) (increase(olmorl_tokens_by_outcome_total{{{LEARNER}}}[1h]))"
                    f" * on(run) group_left() (avg_over_time(olmorl_actors_running{{{LAUNCHER}}}[1h])"
                    f" * olmorl_engine_devices{{{LAUNCHER}}})",
                    "{{outcome}}",
                ),
            ),
            stacked=True,
        ),
        GrafanaPanel(
            "Draws per trained group",
            "1 without filtering. 2 means that half of the work is thrown away: the data are too easy or too hard.",
            (_line("draws_per_trained_group"),),
        ),
        GrafanaPanel(
            "Queues",
            "Few prompts queued: actors take them at once. Few results: the orchestrator keeps up.",
            (
                Query(f"olmorl_prompts_queued{{{LAUNCHER}}}", "prompts queued"),
                Query(f"olmorl_prompts_leased{{{LAUNCHER}}}", "prompts leased"),
                Query(f"olmorl_results_waiting{{{LAUNCHER}}}", "results"),
            ),
        ),
        GrafanaPanel("Draws in flight", "Steady.", (_line("groups_in_flight"),)),
        GrafanaPanel("Time in the queue", "Short against the time of a group.", _quantiles("queue_s"), "s"),
        GrafanaPanel("Time of a group", "The tail is the longest answer and its checks.", _quantiles("group_s"), "s"),
        GrafanaPanel("Draws that are unaccounted for", "Always 0.", (_line("draws_unaccounted"),), is_number=True),
        GrafanaPanel(
            "Refused commits",
            "Near zero. Each is work that an actor lost with its lease.",
            (_line("duplicates_refused_total"),),
        ),
        GrafanaPanel("Prompt tokens", "Grows with the draws.", (_line("prompt_tokens_total"),)),
        GrafanaPanel(
            "Memory of Redis",
            "Flat, and far below its host's memory.",
            (Query(f"olmorl_redis_memory_bytes{{{RUN}}}", "Redis", "an embedded Redis"),),
            "bytes",
        ),
    ),
)

ENGINES = GrafanaBoard(
    "olmorl-actors",
    "OlmoRL: Actors",
    (
        GrafanaPanel(
            "Tokens a second",
            "All actors have similar values.",
            (Query(_rate("tokens_generated_total", ACTORS, "1m"), "{{process}}"),),
        ),
        GrafanaPanel(
            "Sequences",
            "Running is near its bound, waiting is small: the engine is full and nothing queues inside it.",
            (
                Query(f"olmorl_sequences_running{{{ACTORS}}}", "{{process}} running"),
                Query(f"olmorl_sequences_waiting{{{ACTORS}}}", "{{process}} waiting"),
            ),
        ),
        GrafanaPanel(
            "Busy share",
            "Near 100%: an engine with a running sequence is busy.",
            (
                Query(
                    f"{_rate('engine_busy_s_total', ACTORS, '1m')} / {_rate('engine_up_s_total', ACTORS, '1m')}",
                    "{{process}}",
                ),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Slots in use",
            "Near 100%. The KV cache limits the slots too.",
            (
                Query(
                    f"{_rate('engine_running_s_total', ACTORS, '1m')} / {_rate('engine_slots_s_total', ACTORS, '1m')}",
                    "{{process}}",
                ),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "MFU and MBU",
            "Steady. Decoding moves far more bytes than it computes: MBU says how close an engine is to its limit.",
            (
                _line("engine_mfu", "MFU, engines", _ENGINE),
                _line("engine_mbu", "MBU, engines", _ENGINE),
                _line("learner_mfu", "MFU, learner", _ENGINE),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Sequences that wait, by reason",
            "Few. Weights: updates are late. Verdicts: verifiers are slow. Group: one answer is longer than the rest. "
            "Environment: tools are slow; their slots are with others.",
            tuple(
                Query(f"sum({_rate(f'sequences_awaiting_{what}_s_total', ALL_ACTORS, '1m')})", what)
                for what in ("weights", "verdicts", "group", "environment")
            ),
            stacked=True,
        ),
        GrafanaPanel(
            "KV cache in use",
            "High and below 100%: at 100% the engine preempts sequences.",
            (Query(f"olmorl_kv_cache_used_ratio{{{ACTORS}}}", "{{process}}"),),
            "percentunit",
        ),
        GrafanaPanel(
            "Completions a second",
            "Steady.",
            (Query(_rate("completions_total", ACTORS, "1m"), "{{process}}"),),
        ),
        GrafanaPanel(
            "Wasted tokens a second",
            "Zero, except after a lost lease.",
            (Query(_rate("tokens_wasted_total", ACTORS), "{{process}}"),),
        ),
        GrafanaPanel(
            "Prefix cache",
            "High with large groups: the prompt of a group is computed once.",
            (
                Query(
                    f"rate(vllm:prefix_cache_hits_total{{{ACTORS}}}[5m])"
                    f" / rate(vllm:prefix_cache_queries_total{{{ACTORS}}}[5m])",
                    "{{process}}",
                    _ENGINE,
                ),
            ),
            "percentunit",
        ),
        GrafanaPanel(
            "Preempted sequences, per minute",
            "Zero. If not, lower `actors.max_running` or give the KV cache more memory.",
            (Query(f"60 * rate(vllm:num_preemptions_total{{{ACTORS}}}[5m])", "{{process}}", _ENGINE),),
        ),
        GrafanaPanel(
            "Memory of the processes",
            "Flat. A line that always rises is a leak.",
            (Query(f"process_resident_memory_bytes{{{RUN}}}", "{{process}}"),),
            "bytes",
        ),
        GrafanaPanel(
            "Processor time of the processes",
            "Cores that the processes of the run use. Separate engine processes are not included.",
            (Query(f"rate(process_cpu_seconds_total{{{RUN}}}[1m])", "{{process}}"),),
        ),
    ),
)

VERIFIERS = GrafanaBoard(
    "olmorl-verifiers",
    "OlmoRL: Verifiers and data sources",
    (
        GrafanaPanel(
            "Reward by verifier",
            "All rise. One that stays at zero has unusable labels or no answers in its form.",
            (Query(f"olmorl_verifier_reward_mean{{{LEARNER}}}", "{{verifier}}"),),
        ),
        GrafanaPanel(
            "Solve rate by verifier",
            "Between 20% and 80%.",
            (Query(f"olmorl_verifier_solve_rate_mean{{{LEARNER}}}", "{{verifier}}"),),
            "percentunit",
        ),
        GrafanaPanel(
            "Reward by source",
            "All rise. A source near 1 is used up.",
            (Query(f"olmorl_source_reward_mean{{{LEARNER}}}", "{{source}}"),),
        ),
        GrafanaPanel(
            "Solve rate by source",
            "Between 20% and 80%.",
            (Query(f"olmorl_source_solve_rate_mean{{{LEARNER}}}", "{{source}}"),),
            "percentunit",
        ),
        GrafanaPanel(
            "Groups by source, per minute",
            "In the proportions of the recipe's weights.",
            (Query(f"60 * {_per_s('source_groups_total')}", "{{source}}"),),
            stacked=True,
        ),
        GrafanaPanel(
            "Answer length by source",
            "Differs with the task, changes slowly.",
            (Query(f"olmorl_source_completion_tokens_mean{{{LEARNER}}}", "{{source}}"),),
        ),
        GrafanaPanel(
            "Failed draws, per minute",
            "None. `unscorable` is an outage of a verifier, `over_long` a prompt that does not fit.",
            (
                Query(f"60 * {_per_s('failures_total')}", "{{cause}}", _FAILURE),
                Query(f"60 * {_per_s('source_groups_failed_total')}", "{{source}}"),
                Query(f"60 * {_per_s('verifier_groups_failed_total')}", "{{verifier}}"),
            ),
        ),
        GrafanaPanel(
            "Outcomes of checks, per second",
            "`done`, and a few `limit`. Every other kind is an error.",
            (Query(f"sum by (part, kind) ({_rate('verifier_outcomes_total', RUN, '1m')})", "{{part}} {{kind}}"),),
        ),
        GrafanaPanel(
            "Checks that wait for a worker",
            "Near zero. If not, raise `verifiers.workers`.",
            (Query(f"sum by (part) (olmorl_verifier_queue_depth{{{RUN}}})", "{{part}}"),),
        ),
        GrafanaPanel(
            "Time of a verdict",
            "Short against the time of a group.",
            _quantiles("verification_s", "verifier"),
            "s",
        ),
        GrafanaPanel(
            "Workers that were killed, per minute",
            "Rare: each is a check that missed its deadline.",
            (Query(f"60 * sum by (part) ({_rate('verifier_kills_total', RUN)})", "{{part}}"),),
        ),
        GrafanaPanel(
            "Services of judges, reward models and teachers",
            "The breaker is closed (0) everywhere.",
            (Query(f"sum by (part) (olmorl_verifier_breaker_open{{{RUN}}})", "{{part}} open", _SERVICE),),
        ),
    ),
)

FAULTS = GrafanaBoard(
    "olmorl-faults",
    "OlmoRL: Faults",
    (
        GrafanaPanel(
            "Deaths and restarts",
            "Flat lines.",
            (
                Query(f"olmorl_actor_deaths_total{{{LAUNCHER}}}", "actors"),
                Query(f"olmorl_learner_restarts_total{{{LAUNCHER}}}", "learner"),
                Query(f"olmorl_actors_quarantined{{{LAUNCHER}}}", "actors in quarantine"),
            ),
        ),
        GrafanaPanel(
            "Processes that answer",
            "All at 1.",
            (Query('up{job="olmorl",run="$run"}', "{{process}}"),),
        ),
        GrafanaPanel(
            "Start of the learner",
            "Constant: each step up is a restart.",
            (_line("incarnation"),),
        ),
        GrafanaPanel(
            "Tokens lost with their attempts, per second",
            "Zero, except after a death.",
            (Query(_per_s("tokens_lost_total"), "lost"),),
        ),
        GrafanaPanel(
            "Late and duplicate commits, per minute",
            "Zero, except after a death or an outage.",
            (
                Query(f"60 * sum({_rate('commits_late_total', RUN)})", "late"),
                Query(f"60 * sum({_rate('commits_duplicate_total', RUN)})", "duplicate"),
            ),
        ),
        GrafanaPanel(
            "Steps since the last checkpoint",
            "Falls to zero before it reaches twice the interval.",
            (
                Query(f"olmorl_steps_since_checkpoint{{{LAUNCHER}}}", "steps"),
                Query(f"olmorl_checkpoint_every_steps{{{LAUNCHER}}}", "interval"),
            ),
        ),
        GrafanaPanel(
            "Free disk of the run",
            "Falls slowly, and jumps back when old checkpoints are removed.",
            (Query(f"olmorl_disk_free_ratio{{{LAUNCHER}}}", "free"),),
            "percentunit",
        ),
        GrafanaPanel(
            "Alerts",
            "None.",
            (Query(f'ALERTS{{{RUN},alertstate="firing"}}', "{{alertname}}", "an alert"),),
        ),
        GrafanaPanel(
            "Points that a tracker did not take",
            "Zero. If not, the tracker or the collector of traces was too slow or failed; no step waited for it.",
            (_line("tracking_dropped_total", "dropped", "the first steps"),),
        ),
    ),
)

BOARDS: Final = (OVERVIEW, LEARNING, WEIGHTS, LEDGER, ENGINES, VERIFIERS, FAULTS)
