"""The metrics for Prometheus: names, units, counters that never decrease, and targets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from olmorl.deploy.processes.prometheus import Targets, Telemetry, prometheus_name
from olmorl.messages import ActorStatus


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    served = Telemetry("orchestrator", "demo", "127.0.0.1")
    yield served
    served.close()


def scrape(telemetry: Telemetry) -> dict[str, float]:
    """Every sample of ours by its name."""
    text = urlopen(f"http://{telemetry.address}/metrics", timeout=10).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("olmorl_")]
    assert all('{process="orchestrator",run="demo"}' in line for line in lines)
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("reward_mean", "olmorl_reward_mean"),
        ("learner_step_s", "olmorl_learner_step_seconds"),
        ("weight_stall_s_max", "olmorl_weight_stall_seconds_max"),
        ("rank_wait_s_total", "olmorl_rank_wait_seconds_total"),
        ("reward_general-quality_ref_mean", "olmorl_reward_general_quality_ref_mean"),
        ("reward_math#2_mean", "olmorl_reward_math_2_mean"),
        ("actor_tokens_per_s", "olmorl_actor_tokens_per_second"),
    ],
)
def test_names_have_base_units(name: str, wanted: str) -> None:
    assert prometheus_name(name) == wanted


def test_gauges_take_the_last_value_and_counters_never_decrease(telemetry: Telemetry) -> None:
    seen = []
    for reward, trained in ((0.5, 10), (0.25, 30), (0.75, 20), (0.75, 35)):
        telemetry.record({"reward_mean": reward, "groups_trained_total": trained, "reason": "text", "on": True})
        values = scrape(telemetry)
        seen.append((values["olmorl_reward_mean"], values["olmorl_groups_trained_total"]))
    assert seen == [(0.5, 10), (0.25, 30), (0.75, 30), (0.75, 35)]
    assert not {"olmorl_reason", "olmorl_on"} & values.keys()


def test_what_cannot_be_told_stops_nobody_and_is_said_once(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        telemetry.record({"eval_gsm8k-test_tokens": 1, "eval_gsm8k_test_tokens": 2, "drawn_total": 10**400, "step": 3})
    values = scrape(telemetry)
    assert (values["olmorl_eval_gsm8k_test_tokens"], values["olmorl_step"]) == (1, 3)
    assert [record.args[0] for record in caplog.records if record.args] == ["eval_gsm8k_test_tokens", "drawn_total"]


def test_targets_follow_the_processes(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    targets = Targets(path)
    targets.write({"launcher": "127.0.0.1:1", "actor-0": "127.0.0.1:2"})
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:2"], "labels": {"process": "actor-0"}},
        {"targets": ["127.0.0.1:1"], "labels": {"process": "launcher"}},
    ]
    targets.write({"launcher": "127.0.0.1:1"})
    assert [entry["labels"]["process"] for entry in json.loads(path.read_text())] == ["launcher"]
    assert [file.name for file in tmp_path.iterdir()] == ["targets.json"]


def test_what_the_verifiers_did_is_told_by_part_and_by_kind(telemetry: Telemetry) -> None:
    rules = {
        "checks": 10,
        "seconds": 1.5,
        "kills": 1,
        "starts": 2,
        "queue_depth": 3,
        "outcomes.done": 9,
        "outcomes.limit": 1,
    }
    status = ActorStatus(name="actor-0", at=0.0, verifiers={"rules": rules, "judge": {"calls": 4, "outcomes.done": 4}})
    telemetry.record_actor(status)
    more = status.verifiers["rules"] | {"checks": 12, "queue_depth": 0}
    telemetry.record_actor(replace(status, verifiers=status.verifiers | {"rules": more}))
    text = urlopen(f"http://{telemetry.address}/metrics", timeout=10).read().decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("olmorl_verifier_"))
    ours = 'process="orchestrator",run="demo"'
    assert float(samples[f'olmorl_verifier_checks_total{{part="rules",{ours}}}']) == 12
    assert float(samples[f'olmorl_verifier_busy_seconds_total{{part="rules",{ours}}}']) == 1.5
    assert float(samples[f'olmorl_verifier_queue_depth{{part="rules",{ours}}}']) == 0
    assert float(samples[f'olmorl_verifier_outcomes_total{{kind="limit",part="rules",{ours}}}']) == 1
    assert float(samples[f'olmorl_verifier_outcomes_total{{kind="done",part="judge",{ours}}}']) == 4
    assert float(samples[f'olmorl_verifier_calls_total{{part="judge",{ours}}}']) == 4
