"""Every alert fires on the trouble that it is for, and is quiet on a run that looks almost like it. Run by promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "operate.md"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
Series = dict[str, str]
"""Values of each metric in the notation of promtool, one for each minute."""


class Case(NamedTuple):
    """The state of a run after `minutes`, once with the trouble and once almost with it."""

    fires: Series
    quiet: Series
    minutes: int = 60


def starved(wait_s: float, step_s: float, planned: float, balanced: float) -> Series:
    """A learner that waits so long for each step, with nodes for it in the recipe and at balance."""
    return {
        "olmorl_learner_wait_seconds": f"{wait_s}x60",
        "olmorl_learner_step_seconds": f"{step_s}x60",
        "olmorl_planned_actors_per_learner": f"{planned}x60",
        "olmorl_balanced_actors_per_learner": f"{balanced}x60",
    }


def falling(name: str, before: float, after: float) -> Series:
    """A value that holds for five hours, and then another for an hour."""
    return {name: f"{before}x300 {after}x60"}


LAUNCHER_START = 'process_start_time_seconds{job="olmorl",process="launcher"}'
LAUNCHER_UP = 'up{job="olmorl",process="launcher"}'
TOKENS = 'olmorl_tokens_generated_total{process="actor-0"}'
CASES = {
    "NoStep": Case(
        {"olmorl_since_step_seconds": "400x5", "olmorl_step_period_seconds_median": "100x5"},
        # A slow run, and one before its second step.
        {"olmorl_since_step_seconds": "290x5", "olmorl_step_period_seconds_median": "100x5"},
        3,
    ),
    "RunFailed": Case({"olmorl_run_failed": "0 0 1 stale"}, {"olmorl_run_failed": "0 1 0x10"}, 8),
    # A first step may take longer than the alert waits: its tokens are generated meanwhile.
    "StartStuck": Case({LAUNCHER_START: "0x40"}, {LAUNCHER_START: "0x40", TOKENS: "0+500x40"}, 30),
    "CrashLoop": Case(
        {LAUNCHER_START: "0x5 300x5 600x5 900x5", LAUNCHER_UP: "1x20"},
        {LAUNCHER_START: "0x5 300x5 600x10", LAUNCHER_UP: "1x20"},
        20,
    ),
    "LearnerStarved": Case(
        starved(wait_s=364, step_s=125, planned=2.5, balanced=2.5),
        # As planned for 8 learner nodes and 20 actor nodes, whose learner is four times as fast.
        starved(wait_s=364, step_s=125, planned=2.5, balanced=9.8),
    ),
    "CheckpointTooOld": Case(
        {"olmorl_steps_since_checkpoint": "101x5", "olmorl_checkpoint_every_steps": "50x5"},
        {"olmorl_steps_since_checkpoint": "100x5", "olmorl_checkpoint_every_steps": "50x5"},
        4,
    ),
    "ConservationBroken": Case({"olmorl_draws_unaccounted": "0 -1"}, {"olmorl_draws_unaccounted": "0 0"}, 1),
    "ProcessSilent": Case({'up{job="olmorl"}': "1 0 0 0"}, {'up{job="olmorl"}': "1 0 1 1"}, 3),
    "ActorsDown": Case(
        {"olmorl_actors_running": "4 3x10", "olmorl_actors_wanted": "4x11"},
        # A restart takes less than five minutes.
        {"olmorl_actors_running": "4 3x3 4x7", "olmorl_actors_wanted": "4x11"},
        10,
    ),
    "ActorsQuarantined": Case({"olmorl_actors_quarantined": "0 1"}, {"olmorl_actors_quarantined": "0 0"}, 1),
    "DiskFilling": Case(
        {"olmorl_disk_free_ratio": "0.29-0.002x80"},
        {"olmorl_disk_free_ratio": "0.29-0.0001x80"},
        75,
    ),
    "RedisMemory": Case(
        {"olmorl_redis_memory_bytes": "6e9x10", "olmorl_redis_host_memory_bytes": "10e9x10"},
        {"olmorl_redis_memory_bytes": "4e9x10", "olmorl_redis_host_memory_bytes": "10e9x10"},
        10,
    ),
    "VerifierErrors": Case(
        {
            'olmorl_verifier_outcomes_total{part="rules",kind="done"}': "0+980x30",
            'olmorl_verifier_outcomes_total{part="rules",kind="crash"}': "0+20x30",
        },
        {
            # A check that reaches a limit is an answer, not an error.
            'olmorl_verifier_outcomes_total{part="rules",kind="done"}': "0+900x30",
            'olmorl_verifier_outcomes_total{part="rules",kind="limit"}': "0+95x30",
            'olmorl_verifier_outcomes_total{part="rules",kind="crash"}': "0+5x30",
        },
        30,
    ),
    "BreakerOpen": Case(
        {'olmorl_verifier_breaker_open{part="judge"}': "0 1x5"},
        {'olmorl_verifier_breaker_open{part="judge"}': "0 1 0x4"},
        4,
    ),
    "EpisodesFailing": Case(
        {"olmorl_episodes_total": "0+100x30", "olmorl_episode_failures_total": "0+6x30"},
        {"olmorl_episodes_total": "0+100x30", "olmorl_episode_failures_total": "0+4x30"},
        30,
    ),
    "ToolFailing": Case(
        {'olmorl_tool_calls_total{tool="search"}': "0+100x30", 'olmorl_tool_errors_total{tool="search"}': "0+95x30"},
        {
            # A policy that cannot call yet, and tools that it invents.
            'olmorl_tool_calls_total{tool="search"}': "0+100x30",
            'olmorl_tool_errors_total{tool="search"}': "0+80x30",
            'olmorl_tool_calls_total{tool="unknown"}': "0+100x30",
            'olmorl_tool_errors_total{tool="unknown"}': "0+100x30",
        },
        30,
    ),
    "LagAtBound": Case(
        {"olmorl_lag_mean": "3.9x60", "olmorl_lag_bound": "4x60"},
        {"olmorl_lag_mean": "3x60", "olmorl_lag_bound": "4x60"},
    ),
    "EngineLearnerDivergence": Case(
        {"olmorl_kl_engine_learner_fresh": "0.02x10"}, {"olmorl_kl_engine_learner_fresh": "0.002x4 0.02 0.002x5"}, 10
    ),
    "EffectiveSampleSizeLow": Case(
        {"olmorl_importance_ess_fraction_answers": "0.2x30"},
        {"olmorl_importance_ess_fraction_answers": "0.4x30", "olmorl_importance_ess_fraction": "0.2x30"},
        30,
    ),
    "RewardCollapse": Case(
        falling("olmorl_reward_mean", 0.6, 0.2),
        # A reward that was never there cannot collapse.
        falling("olmorl_reward_mean", -0.5, -0.6),
        330,
    ),
    "LengthCollapse": Case(
        falling("olmorl_completion_tokens_mean", 4000, 900), falling("olmorl_completion_tokens_mean", 4000, 2000), 330
    ),
    "EntropyCollapse": Case(falling("olmorl_entropy_mean", 0.5, 0.05), falling("olmorl_entropy_mean", 0.5, 0.2), 330),
    "GradientSpike": Case({"olmorl_grad_norm": "0.2x30 5"}, {"olmorl_grad_norm": "0.2x30 1.5"}, 31),
    "ManyTruncated": Case({"olmorl_truncated_fraction": "0.3x40"}, {"olmorl_truncated_fraction": "0.2x40"}, 40),
    "ManyZeroGradient": Case(
        {"olmorl_groups_zero_gradient_total": "0+60x60", "olmorl_groups_trained_total": "0+40x60"},
        {"olmorl_groups_zero_gradient_total": "0+40x60", "olmorl_groups_trained_total": "0+60x60"},
    ),
}


def of_run(metric: str) -> str:
    """The series of a metric of one run."""
    name, _, labels = metric.partition("{")
    return name + "{" + ",".join(['run="r"', *filter(None, [labels.rstrip("}")])]) + "}"


def check(
    tmp_path: Path, alert: str, series: Series, firing: dict[str, int], interval: str = "1m"
) -> subprocess.CompletedProcess[str]:
    """Whether so many alerts fire at these times, of a run whose launcher answers unless `series` says otherwise."""
    series = {"olmorl_since_step_seconds": "1x400", **series}
    test = {
        "interval": interval,
        "input_series": [{"series": of_run(metric), "values": values} for metric, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": number}] if number else [],
            }
            for at, number in firing.items()
        ],
    }
    file = tmp_path / "test.yml"
    whole: dict[str, Any] = {"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)


def length(values: str) -> int:
    """The number of samples of a series in promtool's notation."""
    return sum(int(each.partition("x")[2]) + 1 if "x" in each else 1 for each in values.split())


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_on_its_trouble_and_on_nothing_else(tmp_path: Path, alert: str) -> None:
    case = CASES[alert]
    alive = {"olmorl_since_step_seconds": "1200x40"} if alert == "StartStuck" else {}
    fired = check(tmp_path, alert, alive | case.fires, {f"{case.minutes}m": 1})
    assert fired.returncode == 0, fired.stdout + fired.stderr
    quiet = check(tmp_path, alert, alive | case.quiet, {f"{case.minutes}m": 0})
    assert quiet.returncode == 0, quiet.stdout + quiet.stderr


@needs_promtool
@pytest.mark.parametrize("alert", [alert for alert in ALERTS if alert != "RunFailed"])
def test_an_alert_is_over_when_the_run_is(tmp_path: Path, alert: str) -> None:
    """Its processes are no longer listed. A range of time still has their samples."""
    fires = {"olmorl_since_step_seconds": "1", **CASES[alert].fires}
    samples = max(map(length, fires.values()))
    # Every series goes on with its last value until all of them end.
    ended = {name: f"{values} {'_ ' * (samples - length(values))}stale" for name, values in fires.items()}
    if alert != "NoStep":
        ended["olmorl_since_step_seconds"] = f"1x{samples - 1} stale"
    quiet = check(tmp_path, alert, ended, {f"{samples + minutes}m": 0 for minutes in (1, 6, 16, 31)})
    assert quiet.returncode == 0, quiet.stdout + quiet.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "series", "firing"),
    [
        ("RunFailed", {LAUNCHER_UP: "1x5 0x10"}, {"5m": 0, "9m": 1}),
        ("RunFailed", {LAUNCHER_UP: "1x5 stale", "olmorl_run_failed": "0x5 stale"}, {"6m": 0, "9m": 0, "30m": 0}),
        ("RunFailed", {LAUNCHER_UP: "1x5 0 1x10", "olmorl_run_failed": "0x20"}, {"8m": 0, "15m": 0}),
        ("StartStuck", {LAUNCHER_START: "0x40", "olmorl_since_step_seconds": "1x40"}, {"30m": 0}),
        ("StartStuck", {LAUNCHER_START: "0x40", "olmorl_since_step_seconds": "stale"}, {"10m": 0, "20m": 1}),
        ("CrashLoop", {LAUNCHER_UP: "1x40", "olmorl_learner_restarts_total": "0x9 1x9 2x9 3x9"}, {"20m": 0, "39m": 1}),
        ("CrashLoop", {LAUNCHER_UP: "1x40", "olmorl_actor_deaths_total": "0+1x40", "olmorl_actors_wanted": "8x40"},
         {"20m": 0, "39m": 1}),
        (
            "ActorsDown",
            {"olmorl_actors_running": "4x40", "olmorl_actors_wanted": "4x40", "olmorl_actors_serving": "0x12 4 3x27"},
            {"11m": 0, "20m": 0, "38m": 1},
        ),
        # The first minutes of a run fill its folder, and then no more.
        ("DiskFilling", {"olmorl_disk_free_ratio": "0.29-0.005x10 0.24x60"}, {"6m": 0, "10m": 0, "30m": 0, "65m": 0}),
        ("DiskFilling", {"olmorl_disk_free_ratio": "0.2x5 0.04x5"}, {"5m": 0, "6m": 1}),
    ],
)  # fmt: skip
def test_an_alert_in_other_cases(tmp_path: Path, alert: str, series: Series, firing: dict[str, int]) -> None:
    found = check(tmp_path, alert, series, firing)
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_a_disk_that_fills_in_two_minutes_alerts_before_it_is_full(tmp_path: Path) -> None:
    series = {"olmorl_disk_free_ratio": "0.5x24 0.5-0.0208x24"}
    found = check(tmp_path, "DiskFilling", series, {"120s": 0, "225s": 1}, interval="5s")
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_the_rules_are_valid() -> None:
    found = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_has_a_case_and_a_line_in_the_runbook() -> None:
    assert CASES.keys() == ALERTS.keys()
    runbook = re.split(r"^## (.+)\n", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    alerts = runbook[runbook.index("Alerts") + 1]
    sections = dict(re.findall(r"^### (\w+)\n\n(.+)$", alerts, re.MULTILINE))
    assert sections.keys() == ALERTS.keys()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/operate.md#{name.lower()}"
