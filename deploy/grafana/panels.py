"""The panels of the Grafana boards: the queries of each, and what good looks like."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import Any, Final, NamedTuple

from olmorl.deploy.view.curves import PANELS
from olmorl.metrics import family_of, prometheus_name

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


def _panel(title: str, good: str, *queries: Query, **look: Any) -> GrafanaPanel:
    return GrafanaPanel(title, good, queries, **look)


def _board(name: str, title: str, *panels: GrafanaPanel) -> GrafanaBoard:
    return GrafanaBoard(f"olmorl-{name}", f"OlmoRL: {title}", panels)


def _line(name: str, legend: str = "", waits_for: str = "") -> Query:
    """A field of `metrics.jsonl`."""
    return Query(f"{prometheus_name(name)}{{{LEARNER}}}", legend, waits_for)


def _curves(*titles: str) -> Iterator[GrafanaPanel]:
    """Panels of `olmorl.deploy.view.curves`."""
    for panel in (PANELS[title] for title in titles):
        queries = starmap(_curve, panel.curves.items())
        title = panel.title if panel.unit in _UNITS else panel.heading
        yield _panel(title, panel.good, *queries, unit=_UNITS.get(panel.unit, "short"))


def _curve(field: str, label: str) -> Query:
    """A field, or the fields of a pattern, of `metrics.jsonl`."""
    waits_for = next((event for begin, event in _WAITS.items() if field.startswith(begin)), "")
    if found := family_of(field):
        return _line(found[0].name, f"{{{{{found[0].label}}}}}", waits_for)
    if "*" in field:
        name = ".+".join(field.split("*"))
        return Query(f'{{__name__=~"olmorl_{name}",{RUN}}}', "{{__name__}}", waits_for)
    return _line(field, label, waits_for)


def _launcher(name: str, legend: str = "", waits_for: str = "") -> Query:
    """A metric of the launcher."""
    return Query(f"{prometheus_name(name)}{{{LAUNCHER}}}", legend, waits_for)


def _actors(name: str, legend: str) -> Query:
    """A metric of each actor that the board shows."""
    return Query(f"{prometheus_name(name)}{{{ACTORS}}}", legend)


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


def _by_tool(name: str) -> str:
    return f"sum by (tool) ({_rate(name, RUN)})"


_WAITED = f"olmorl_rank_wait_seconds_total{{{RANKS}}}"
_BUSY = f"olmorl_rank_busy_seconds_total{{{RANKS}}}"
_LINES = "the first steps"
_ENGINE = "a real engine"
_SERVICE = "a judge, a reward model or a teacher"
_TEACHER = "a teacher"
_FAILURE = "a draw that fails"
_EPISODE = "an episode"
_TOOL = "a call of a tool"
_WAITS = {"eval_": "an evaluation", "teacher_": _TEACHER, "source_*_teacher_": _TEACHER}
_WAITS |= {"engine_m": _ENGINE, "learner_mfu": _ENGINE}
"""The event before which a curve has no data, by the beginning of its field."""
_UNITS = {"s": "s", "share": "percentunit"}
"""The units that Grafana shows by itself."""
_IN_TOOLS = f"sum({_rate('sequences_awaiting_environment_s_total', ALL_ACTORS)})"

(_LAG,) = _curves("Lag")

OVERVIEW = _board(
    "overview",
    "Overview",
    _panel("Steps done", "Grows without a break.", _line("step"), is_number=True),
    _panel(
        "What limits the run",
        "`balanced`. Otherwise `olmorl-ctl RUN status` gives the reason and a remedy.",
        Query(f"olmorl_limit{{{LAUNCHER}}} == 1", "{{limit}}", _LINES),
        is_number=True,
        shows_name=True,
    ),
    _panel(
        "Actor nodes for each learner node",
        "The run's own ratio is close to this one, at which neither waits for the other.",
        _launcher("balanced_actors_per_learner", "at balance", _LINES),
    ),
    _panel(
        "Time since the last step",
        "Below three times the median of a step.",
        _launcher("since_step_seconds", "now"),
        _launcher("step_period_seconds_median", "median"),
        unit="s",
    ),
    _panel(
        "Time left",
        "Falls as fast as the clock runs.",
        Query(
            f"(olmorl_steps_wanted{{{LAUNCHER}}} - on(run) olmorl_step{{{LEARNER}}})"
            f" * on(run) olmorl_step_period_seconds_median{{{LAUNCHER}}}"
        ),
        unit="s",
        is_number=True,
    ),
    _panel(
        "Actors",
        "As many serve as are wanted. One that runs and does not serve is starting.",
        _launcher("actors_serving", "serving"),
        _launcher("actors_running", "running"),
        _launcher("actors_wanted", "wanted"),
    ),
    *_curves("Reward", "Throughput"),
    _panel(
        "Share of the learner's time spent waiting",
        "Close to the plan's. Far above it: too few actors, or slow ones.",
        Query(
            f"increase({_WAITED}[{WINDOW}]) / (increase({_WAITED}[{WINDOW}]) + increase({_BUSY}[{WINDOW}]))",
            "{{process}}",
        ),
        unit="percentunit",
    ),
    *_curves("Held-out accuracy"),
)

LEARNING = _board(
    "learning",
    "Learning",
    *_curves(
        "Loss", "Gradient norm", "Entropy", "Clipped tokens", "Effective sample size", "KL engine against learner"
    ),
    *_curves("KL of an answer", "Outliers of an answer", "Threshold of outliers", "Answer length"),
    _panel(
        "Distribution of answer lengths", "Static batching would wait for the tail.", *_quantiles("completion_tokens")
    ),
    *_curves("Truncated answers", "Solve rate", "Learning rate", "Divergence from the teachers"),
    *(panel._replace(stacked=True) for panel in _curves("Phases of a step")),
)

WEIGHTS = _board(
    "weights",
    "Weights and staleness",
    _LAG._replace(queries=(*_LAG.queries, _launcher("lag_bound", "bound"))),
    _panel("Distribution of the lag", "Most tokens are young.", *_quantiles("token_lag_versions")),
    _panel(
        "Age of the KV cache",
        "Versions between the first and the last token of an answer. Grows with the length of answers.",
        *_quantiles("kv_cache_age_versions"),
    ),
    *_curves("Publishing a version", "Stall of the engines per update"),
    _panel(
        "Policy version of each actor",
        "All lines are close together and rise with the steps.",
        _actors("policy_version", "{{process}}"),
    ),
    _panel(
        "Failed updates",
        "None.",
        Query(f"increase(olmorl_weight_update_failures_total{{{ACTORS}}}[5m])", "{{process}}"),
    ),
)

LEDGER = _board(
    "ledger",
    "Queues and ledger",
    _panel(
        "Where draws end, per minute",
        "Mostly trained. Stale and failed stay near zero.",
        *(
            Query(f"60 * {_per_s(f'groups_{outcome}_total')}", outcome)
            for outcome in ("trained", "zero_gradient", "stale", "failed")
        ),
        stacked=True,
    ),
    _panel(
        "Where tokens end, per second",
        "Mostly trained. The colours are a partition: each token has one.",
        Query(f"sum by (outcome) ({_per_s('tokens_by_outcome_total')})", "{{outcome}}"),
        stacked=True,
    ),
    _panel(
        "Where device hours go, in the last hour",
        "Mostly trained. GPU hours of the engines, or core hours, divided as their tokens.",
        Query(
            f"sum by (run, outcome) (increase(olmorl_tokens_by_outcome_total{{{LEARNER}}}[1h]))"
            f" / on(run) group_left() sum by (run) (increase(olmorl_tokens_by_outcome_total{{{LEARNER}}}[1h]))"
            f" * on(run) group_left() (avg_over_time(olmorl_actors_running{{{LAUNCHER}}}[1h])"
            f" * olmorl_engine_devices{{{LAUNCHER}}})",
            "{{outcome}}",
        ),
        stacked=True,
    ),
    *_curves("Draws per trained group"),
    _panel(
        "Queues",
        "Few prompts queued: actors take them at once. Few results: the orchestrator keeps up.",
        _launcher("prompts_queued", "prompts queued"),
        _launcher("prompts_leased", "prompts leased"),
        _launcher("results_waiting", "results"),
    ),
    *_curves("Draws in flight"),
    _panel("Time in the queue", "Short against the time of a group.", *_quantiles("queue_s"), unit="s"),
    _panel("Time of a group", "The tail is the longest answer and its checks.", *_quantiles("group_s"), unit="s"),
    _panel("Draws that are unaccounted for", "Always 0.", _line("draws_unaccounted"), is_number=True),
    _panel(
        "Refused commits",
        "Near zero. Each is work that an actor lost with its lease.",
        _line("duplicates_refused_total"),
    ),
    _panel("Prompt tokens", "Grows with the draws.", _line("prompt_tokens_total")),
    _panel(
        "Memory of Redis",
        "Flat, and far below its host's memory.",
        Query(f"olmorl_redis_memory_bytes{{{RUN}}}", "Redis", "an embedded Redis"),
        unit="bytes",
    ),
)

ENGINES = _board(
    "actors",
    "Actors",
    _panel(
        "Tokens a second",
        "All actors have similar values.",
        Query(_rate("tokens_generated_total", ACTORS, "1m"), "{{process}}"),
    ),
    _panel(
        "Sequences",
        "Running is near its bound, waiting is small: the engine is full and nothing queues inside it.",
        _actors("sequences_running", "{{process}} running"),
        _actors("sequences_waiting", "{{process}} waiting"),
    ),
    _panel(
        "Busy share",
        "Near 100%: an engine with a running sequence is busy.",
        Query(
            f"{_rate('engine_busy_s_total', ACTORS, '1m')} / {_rate('engine_up_s_total', ACTORS, '1m')}",
            "{{process}}",
        ),
        unit="percentunit",
    ),
    _panel(
        "Slots in use",
        "Near 100%. The KV cache limits the slots too.",
        Query(
            f"{_rate('engine_running_s_total', ACTORS, '1m')} / {_rate('engine_slots_s_total', ACTORS, '1m')}",
            "{{process}}",
        ),
        unit="percentunit",
    ),
    *_curves("MFU and MBU"),
    _panel(
        "Sequences that wait, by reason",
        "Few. Weights: updates are late. Verdicts: verifiers are slow. Group: one answer is longer than the rest. "
        "Environment: tools are slow; their slots are with others.",
        *(
            Query(f"sum({_rate(f'sequences_awaiting_{what}_s_total', ALL_ACTORS, '1m')})", what)
            for what in ("weights", "verdicts", "group", "environment")
        ),
        stacked=True,
    ),
    _panel(
        "KV cache in use",
        "High and below 100%: at 100% the engine preempts sequences.",
        _actors("kv_cache_used_ratio", "{{process}}"),
        unit="percentunit",
    ),
    _panel("Completions a second", "Steady.", Query(_rate("completions_total", ACTORS, "1m"), "{{process}}")),
    _panel(
        "Wasted tokens a second",
        "Zero, except after a lost lease.",
        Query(_rate("tokens_wasted_total", ACTORS), "{{process}}"),
    ),
    _panel(
        "Prefix cache",
        "High with large groups: the prompt of a group is computed once.",
        Query(
            f"rate(vllm:prefix_cache_hits_total{{{ACTORS}}}[5m])"
            f" / rate(vllm:prefix_cache_queries_total{{{ACTORS}}}[5m])",
            "{{process}}",
            _ENGINE,
        ),
        unit="percentunit",
    ),
    _panel(
        "Preempted sequences, per minute",
        "Zero. If not, lower `actors.max_running` or give the KV cache more memory.",
        Query(f"60 * rate(vllm:num_preemptions_total{{{ACTORS}}}[5m])", "{{process}}", _ENGINE),
    ),
    _panel(
        "Memory of the processes",
        "Flat. A line that always rises is a leak.",
        Query(f"process_resident_memory_bytes{{{RUN}}}", "{{process}}"),
        unit="bytes",
    ),
    _panel(
        "Processor time of the processes",
        "Cores that the processes of the run use. Separate engine processes are not included.",
        Query(f"rate(process_cpu_seconds_total{{{RUN}}}[1m])", "{{process}}"),
    ),
)

VERIFIERS = _board(
    "verifiers",
    "Verifiers and data sources",
    *_curves("Reward by verifier", "Solve rate by verifier", "Reward by source", "Solve rate by source"),
    _panel(
        "Groups by source, per minute",
        "In the proportions of the recipe's weights.",
        Query(f"60 * {_per_s('source_groups_total')}", "{{source}}"),
        stacked=True,
    ),
    *_curves("Answer length by source"),
    _panel(
        "Failed draws, per minute",
        "None. `unscorable` is an outage of a verifier, `over_long` a prompt that does not fit.",
        Query(f"60 * {_per_s('failures_total')}", "{{cause}}", _FAILURE),
        Query(f"60 * {_per_s('source_groups_failed_total')}", "{{source}}"),
        Query(f"60 * {_per_s('verifier_groups_failed_total')}", "{{verifier}}"),
    ),
    _panel(
        "Ends of episodes, per minute",
        "Mostly `done`. `bad_call` falls as the policy learns; many `max_turns` or `too_long` call for higher bounds.",
        Query(f"60 * {_per_s('exits_total')}", "{{exit}}", _EPISODE),
        stacked=True,
    ),
    _panel(
        "Turns of an episode, and seconds between them",
        "Seconds near those of the tools. Their share of an episode's time is what the lag has to cover.",
        _line("episode_turns_mean", "turns", _EPISODE),
        _line("episode_between_turns_s_mean", "seconds", _EPISODE),
    ),
    _panel(
        "Share of the episodes that wait for tools",
        "Their share of an episode's time. Other episodes have these slots meanwhile.",
        Query(f"{_IN_TOOLS} / ({_IN_TOOLS} + sum({_rate('engine_running_s_total', ALL_ACTORS)}))", "wait", _EPISODE),
        unit="percentunit",
    ),
    _panel(
        "Failed tries of episodes, per minute",
        "None. Each is an outage of an environment or an agent; after three the group fails.",
        Query(f"60 * sum({_rate('episode_failures_total', RUN)})", "failed", _EPISODE),
    ),
    _panel(
        "Processes of environments",
        "As many as there are episodes under way, and flat.",
        Query(f"olmorl_environment_processes{{{RUN}}}", "{{process}}", _EPISODE),
    ),
    _panel(
        "Errors of tools, share of their calls",
        "Falls as the policy learns. At 100% a tool is broken; `unknown` are tools that the policy invents.",
        Query(f"{_by_tool('tool_errors_total')} / {_by_tool('tool_calls_total')}", "{{tool}}", _TOOL),
        unit="percentunit",
    ),
    _panel(
        "Time of a tool's call",
        "Steady. It grows when what the tool asks is overloaded.",
        Query(f"{_by_tool('tool_s_total')} / {_by_tool('tool_calls_total')}", "{{tool}}", _TOOL),
        unit="s",
    ),
    _panel(
        "Outcomes of checks, per second",
        "`done`, and a few `limit`. Every other kind is an error.",
        Query(f"sum by (part, kind) ({_rate('verifier_outcomes_total', RUN, '1m')})", "{{part}} {{kind}}"),
    ),
    _panel(
        "Checks that wait for a worker",
        "Near zero. If not, raise `verifiers.workers`.",
        Query(f"sum by (part) (olmorl_verifier_queue_depth{{{RUN}}})", "{{part}}"),
    ),
    _panel(
        "Time of a verdict", "Short against the time of a group.", *_quantiles("verification_s", "verifier"), unit="s"
    ),
    _panel(
        "Workers that were killed, per minute",
        "Rare: each is a check that missed its deadline.",
        Query(f"60 * sum by (part) ({_rate('verifier_kills_total', RUN)})", "{{part}}"),
    ),
    _panel(
        "Services of judges, reward models and teachers",
        "The breaker is closed (0) everywhere.",
        Query(f"sum by (part) (olmorl_verifier_breaker_open{{{RUN}}})", "{{part}} open", _SERVICE),
    ),
)

FAULTS = _board(
    "faults",
    "Faults",
    _panel(
        "Deaths and restarts",
        "Flat lines.",
        _launcher("actor_deaths_total", "actors"),
        _launcher("learner_restarts_total", "learner"),
        _launcher("actors_quarantined", "actors in quarantine"),
    ),
    _panel("Processes that answer", "All at 1.", Query('up{job="olmorl",run="$run"}', "{{process}}")),
    _panel("Start of the learner", "Constant: each step up is a restart.", _line("incarnation")),
    _panel(
        "Tokens lost with their attempts, per second",
        "Zero, except after a death.",
        Query(_per_s("tokens_lost_total"), "lost"),
    ),
    _panel(
        "Late and duplicate commits, per minute",
        "Zero, except after a death or an outage.",
        Query(f"60 * sum({_rate('commits_late_total', RUN)})", "late"),
        Query(f"60 * sum({_rate('commits_duplicate_total', RUN)})", "duplicate"),
    ),
    _panel(
        "Steps since the last checkpoint",
        "Falls to zero before it reaches twice the interval.",
        _launcher("steps_since_checkpoint", "steps"),
        _launcher("checkpoint_every_steps", "interval"),
    ),
    _panel(
        "Free disk of the run",
        "Falls slowly, and jumps back when old checkpoints are removed.",
        _launcher("disk_free_ratio", "free"),
        unit="percentunit",
    ),
    _panel("Alerts", "None.", Query(f'ALERTS{{{RUN},alertstate="firing"}}', "{{alertname}}", "an alert")),
    _panel(
        "Points that a tracker did not take",
        "Zero. If not, the tracker or the collector of traces was too slow or failed; no step waited for it.",
        _line("tracking_dropped_total", "dropped", "the first steps"),
    ),
)

BOARDS: Final = (OVERVIEW, LEARNING, WEIGHTS, LEDGER, ENGINES, VERIFIERS, FAULTS)
