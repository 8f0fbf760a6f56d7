"""The metrics for Prometheus: names, units, counters that never decrease, and targets."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY, Gauge

from olmorl import metrics
from olmorl.deploy.processes.prometheus import TARGETS_PATH, Targets, Telemetry, target_entries
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict
from olmorl.errors import ResourceError
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import ActorStatus, Group
from olmorl.metrics import prometheus_name
from tests.deploy.ended_draws import ended


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


def test_one_limit_is_1_and_the_others_0(telemetry: Telemetry) -> None:
    telemetry.record_verdict(None)
    assert not scrape(telemetry)
    for limit in (Bottleneck.QUEUE, Bottleneck.ACTORS):
        telemetry.record_verdict(RunVerdict(limit, 0.75, "slots are full", "", 6.0))
    text = urlopen(f"http://{telemetry.address}/metrics", timeout=10).read().decode()
    found = {
        limit: f'olmorl_limit{{limit="{limit}",process="orchestrator",run="demo"}} 1.0' in text for limit in Bottleneck
    }
    assert found == {limit: limit is Bottleneck.ACTORS for limit in Bottleneck}
    assert text.count("olmorl_limit{") == len(Bottleneck)
    assert "olmorl_limit_sure_ratio" in text and "olmorl_balanced_actors_per_learner{" in text
    telemetry.record_verdict(None)
    assert not scrape(telemetry), "an old verdict is silent"


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
    targets = Targets(path, "demo")
    targets.write({"launcher": "127.0.0.1:1", "actor-0": "127.0.0.1:2"})
    assert json.loads(path.read_text()) == [
        {
            "targets": ["127.0.0.1:2"],
            "labels": {"run": "demo", "process": "actor-0", "instance": "demo/actor-0"},
        },
        {
            "targets": ["127.0.0.1:1"],
            "labels": {"run": "demo", "process": "launcher", "instance": "demo/launcher"},
        },
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


def test_episodes_are_told_and_their_tools_by_name(telemetry: Telemetry) -> None:
    counts: dict[str, float] = {
        "episodes": 9,
        "failures": 2,
        "processes": 4,
        "tool_calls.search": 20,
        "tool_errors.search": 5,
        "tool_s.search": 1.5,
    }
    counts |= {f"tool_calls.tool{number}": 1 for number in range(200)}
    telemetry.record_actor(ActorStatus(name="actor-0", at=0.0, episodes=counts))
    telemetry.record_actor(ActorStatus(name="actor-0", at=1.0, episodes=counts | {"processes": 1, "failures": 3}))
    text = urlopen(f"http://{telemetry.address}/metrics", timeout=10).read().decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("olmorl_"))
    ours = 'process="orchestrator",run="demo"'
    assert [float(samples[f"olmorl_{name}{{{ours}}}"]) for name in ("episodes_total", "episode_failures_total")] == [
        9,
        3,
    ]
    assert float(samples[f"olmorl_environment_processes{{{ours}}}"]) == 1
    of_search = f'{{{ours},tool="search"}}'
    names = ("tool_calls_total", "tool_errors_total", "tool_seconds_total")
    assert [float(samples[f"olmorl_{name}{of_search}"]) for name in names] == [20, 5, 1.5]
    assert sum(name.startswith("olmorl_tool_calls_total") for name in samples) == metrics.MOST_LABEL_VALUES + 1
    assert f'olmorl_tool_calls_total{{{ours},tool="other"}}' in samples


def test_a_launcher_serves_the_targets_and_its_metrics_at_one_address() -> None:
    addresses = {"actor-0": "127.0.0.1:2"}
    served = Telemetry("launcher", "demo", "127.0.0.1", targets=lambda: target_entries(addresses, "demo"))
    try:
        for _ in range(2):
            found = json.load(urlopen(f"http://{served.address}{TARGETS_PATH}", timeout=10))
            assert found == target_entries(addresses, "demo")
            addresses["actor-1"] = "127.0.0.1:3"
        assert b"process_cpu_seconds_total" in urlopen(f"http://{served.address}/metrics", timeout=10).read()
    finally:
        served.close()


def test_metrics_of_vllm_are_served_beside_ours(telemetry: Telemetry) -> None:
    theirs = Gauge("vllm:of_this_test", "As vLLM keeps its own.")
    try:
        theirs.set(7)
        # As Prometheus asks.
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
        text = urlopen(Request(f"http://{telemetry.address}/metrics", headers=accept), timeout=10).read().decode()
        assert "vllm:of_this_test 7.0" in text.splitlines()
        assert "python_info" not in text, "of the registry of the whole process nothing else is served"
    finally:
        REGISTRY.unregister(theirs)


SCRAPE = {"X-Prometheus-Scrape-Timeout-Seconds": "5"}


def test_only_a_prometheus_that_scrapes_is_waited_for(telemetry: Telemetry) -> None:
    address = f"http://{telemetry.address}/metrics"
    for _ in range(3):
        urlopen(address, timeout=10).read()
    assert telemetry.scrapes.next_within_s() == 0, "a person who reads the metrics"
    urlopen(Request(address, headers=SCRAPE), timeout=10).read()
    assert telemetry.scrapes.next_within_s() == 60, "its interval is not known yet"
    time.sleep(0.2)
    urlopen(Request(address, headers=SCRAPE), timeout=10).read()
    assert 0.4 <= telemetry.scrapes.next_within_s() < 10
    telemetry.scrapes.note(time.monotonic() - 200)
    telemetry.scrapes.note(time.monotonic() - 195)
    assert telemetry.scrapes.next_within_s() == 0, "it went away"
    assert telemetry.discoveries.next_within_s() == 0, "its targets are in a file"


def test_the_last_value_waits_for_a_scrape_that_begins_after_it(telemetry: Telemetry) -> None:
    seen = []

    def scrapes() -> None:
        time.sleep(0.3)
        request = Request(f"http://{telemetry.address}/metrics", headers=SCRAPE)
        seen.append(urlopen(request, timeout=10).read().decode())

    telemetry.record({"run_failed": 1})
    thread = threading.Thread(target=scrapes)
    thread.start()
    began = time.monotonic()
    telemetry.scrapes.wait(30)
    assert 0.2 < time.monotonic() - began < 20
    thread.join()
    assert 'olmorl_run_failed{process="orchestrator",run="demo"} 1.0' in seen[0]
    began = time.monotonic()
    telemetry.scrapes.wait(0.2)
    assert time.monotonic() - began >= 0.2, "the scrape before this call does not count"


def test_a_port_that_is_taken_is_a_clear_error(telemetry: Telemetry) -> None:
    port = int(telemetry.address.rpartition(":")[2])
    with pytest.raises(ResourceError, match=r"telemetry\.port"):
        Telemetry("launcher", "demo", "127.0.0.1", port)


def line(step: int, **more: float) -> dict[str, float]:
    return {"step": step, "groups_trained_total": 8 * step, "source_math.jsonl_groups": 10, **more}


def samples(telemetry: Telemetry, name: str) -> dict[str, float]:
    """The samples of this name, by their labels without run and process."""
    text = urlopen(f"http://{telemetry.address}/metrics", timeout=10).read().decode()
    found = (sample.rsplit(" ", 1) for sample in text.splitlines() if sample.startswith(name + "{"))
    ours = ('process="orchestrator"', 'run="demo"')
    return {
        ",".join(label for label in labels.partition("{")[2].rstrip("}").split(",") if label not in ours): float(value)
        for labels, value in found
    }


def test_counters_of_lines_survive_replays_and_restarts(telemetry: Telemetry) -> None:
    for step in (1, 2, 3, 2, 3, 4):  # a rank died after step 3, and the steps after 1 are replayed
        telemetry.record_line(line(step))
    telemetry.record_line({"eval_held_accuracy": 0.5, "tokens_evaluation_total": 70})
    assert samples(telemetry, "olmorl_source_groups_total") == {'source="math.jsonl"': 40}
    assert samples(telemetry, "olmorl_groups_trained_total") == {"": 32}
    assert samples(telemetry, "olmorl_tokens_by_outcome_total") == {'outcome="evaluation"': 70}
    again = Telemetry("orchestrator", "demo", "127.0.0.1")
    try:
        # The lines up to 4 are on disk. The run goes back to step 2, and trains other groups.
        again.restore([line(step) for step in (1, 2, 3, 4)])
        assert samples(again, "olmorl_source_groups_total") == {'source="math.jsonl"': 40}
        assert samples(again, "olmorl_groups_trained_total") == {"": 32}
        assert samples(again, "olmorl_step") == {}, "gauges are of this start"
        for step in (3, 4, 5):
            again.record_line(line(step))
        assert samples(again, "olmorl_source_groups_total") == {'source="math.jsonl"': 50}
        assert samples(again, "olmorl_groups_trained_total") == {"": 40}
    finally:
        again.close()


def test_sets_of_labels_are_bounded(telemetry: Telemetry) -> None:
    telemetry.record_line({"step": 1, **{f"source_{number:03d}_groups": 2 for number in range(200)}})
    found = samples(telemetry, "olmorl_source_groups_total")
    assert len(found) == metrics.MOST_LABEL_VALUES + 1
    assert found['source="063"'] == 2
    assert found['source="other"'] == 2 * (200 - metrics.MOST_LABEL_VALUES)


def test_a_draw_that_ended_is_in_every_histogram(telemetry: Telemetry) -> None:
    trained = ended()
    group = trained.result
    assert isinstance(group, Group)
    first, second = group.completions
    telemetry.record_ended(trained)
    telemetry.record_ended(ended(outcome=Outcome.ZERO_GRADIENT, step=None))
    telemetry.record_ended(ended(outcome=Outcome.FAILED, cause="over_long"))
    malformed = replace(group, completions=(replace(first, spans=()), second))
    telemetry.record_ended(Ended(malformed, Outcome.FAILED, None, "malformed: no spans"))
    lengths = samples(telemetry, "olmorl_completion_tokens_bucket")
    assert (lengths['le="16.0"'], lengths['le="64.0"'], lengths['le="+Inf"']) == (2, 4, 4)
    # Step 6 trains version 5: two tokens of lag 3, one of lag 1, forty of lag 0. Only one of the two draws is trained.
    lags = samples(telemetry, "olmorl_token_lag_versions_bucket")
    assert [lags[f'le="{bound}.0"'] for bound in (0, 1, 2, 3)] == [40, 41, 41, 43]
    assert samples(telemetry, "olmorl_token_lag_versions_sum") == {"": 7}
    assert samples(telemetry, "olmorl_kv_cache_age_versions_sum") == {"": 4}
    assert samples(telemetry, "olmorl_queue_seconds_sum") == {"": 20}
    assert samples(telemetry, "olmorl_group_seconds_count") == {"": 2}
    assert samples(telemetry, "olmorl_verification_seconds_sum") == {'verifier="math"': 4 * 0.25}


@pytest.mark.parametrize("value", [1, 2, 3, 17, 20, 175, 249, 4095, 32768, 100_000])
@pytest.mark.parametrize("name", [name for name in metrics.HISTOGRAMS if name.startswith("completion")])
def test_a_quantile_of_buckets_of_whole_numbers_is_close(name: str, value: int) -> None:
    assert bucket_width(name, value) < 0.055 * value


@pytest.mark.parametrize("seconds", [0.00011, 0.005, 0.1, 1.0, 17.0, 489.0, 5000.0])
def test_a_quantile_of_buckets_of_seconds_is_close(seconds: float) -> None:
    for name in metrics.HISTOGRAMS:
        if name.endswith("_s"):
            assert bucket_width(name, seconds) < 0.055 * seconds


def bucket_width(name: str, value: float) -> float:
    """How far the value may be from a quantile that Prometheus makes of its bucket."""
    bounds = metrics.HISTOGRAMS[name].buckets
    upper = next(number for number, bound in enumerate(bounds) if bound >= value)
    return max(value - bounds[upper - 1], bounds[upper] - value)


@pytest.mark.parametrize(
    ("field", "metric", "label", "part"),
    [
        ("tokens_stale_total", "tokens_by_outcome_total", "outcome", "stale"),
        ("source_owner/set_reward_mean", "source_reward_mean", "source", "owner/set"),
        ("source_a_groups_failed", "source_groups_failed_total", "source", "a_groups"),
        ("reward_math#2_mean", "verifier_reward_mean", "verifier", "math#2"),
        ("verifier_ifeval_solve_rate_mean", "verifier_solve_rate_mean", "verifier", "ifeval"),
        ("failures_over_long", "failures_total", "cause", "over_long"),
        ("exits_max_turns", "exits_total", "exit", "max_turns"),
    ],
)
def test_a_part_of_a_field_becomes_a_label(field: str, metric: str, label: str, part: str) -> None:
    found = metrics.family_of(field)
    assert found is not None
    assert (found[0].name, found[0].label, found[1]) == (metric, label, part)


def test_every_other_field_has_a_meaning_and_no_label() -> None:
    outcomes = {f"tokens_{outcome}_total" for outcome in metrics.OUTCOMES}
    assert outcomes < metrics.HELP.keys()
    assert all(metrics.meaning(field) for field in metrics.HELP)
    assert {field for field in metrics.HELP if metrics.family_of(field)} == outcomes


def test_a_scraper_that_gives_up_leaves_nothing_in_the_log(
    telemetry: Telemetry, capfd: pytest.CaptureFixture[str]
) -> None:
    host, _, port = telemetry.address.rpartition(":")
    for number in range(4000):
        telemetry.record({f"eval_set{number}_accuracy": 0.5})
    for _ in range(5):
        with socket.create_connection((host, int(port))) as scraper:
            # Closing with a reset, before the answer is made.
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "olmorl_eval_set3999_accuracy" in urlopen(f"http://{telemetry.address}/metrics").read().decode()
    deadline = time.monotonic() + 10
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert capfd.readouterr().err == ""
