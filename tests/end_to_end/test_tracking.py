"""A whole run with a tracker and a collector of traces: they have what the run has, and never hold it up."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger import read_ledger
from olmorl.run_dir import RunFiles
from tests.deploy.tracking.otlp_receiver import OtlpReceiver

SETTINGS = """
[schedule]
steps = {steps}
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 4
[telemetry]
tracker = "{tracker}"
"""
pytestmark = [pytest.mark.cluster]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_curves_and_traces_are_those_of_the_run_also_after_a_crash(simulate: Callable[[str], Any]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = simulate(SETTINGS.format(steps=16, tracker="tensorboard"))
    with OtlpReceiver() as receiver:
        run.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
        run.start()
        run.until_step(6)
        run.signal(signal.SIGKILL)
        run.wait()
        run.until_gone()
        run.start("--resume")
        assert run.wait() == 0, run.output()
        traces = receiver.traces().values()
    lines = run.lines()
    read = EventAccumulator(str(run.run_dir / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    for name in ("reward_mean", "tokens_trained_total", "lag_mean"):
        found = {point.step: point.value for point in read.Scalars(name)}
        assert found == pytest.approx({line["step"]: line[name] for line in lines}, rel=1e-6), name
    assert {point.step for point in read.Tensors("samples")} <= {line["step"] for line in lines}
    assert len(read.Tensors("samples")) > 8

    ended = {"trained": set(), "zero_gradient": set()}
    prompts = [next(span for span in spans if not span.parent) for spans in traces]
    for prompt in prompts:
        ended.setdefault(prompt.about["olmorl.outcome"], set()).add(prompt.about["olmorl.draw"])
    recorded: dict[str, set[int]] = {}
    for path in rollout_log.files(RunFiles(run.run_dir).rollouts):
        for record in rollout_log.read(path):
            recorded.setdefault(record["outcome"], set()).add(record["prompt_id"])
    # What the killed process had not sent is lost with it.
    for outcome, draws in ended.items():
        assert draws <= recorded[outcome] and len(draws) > len(recorded[outcome]) / 2, outcome
    for prompt in prompts:
        if "trained" in dict(prompt.events):
            names = [name for name, _ in prompt.events]
            assert names == ["drawn", "leased", "committed", "batched", "trained"]
            times = [at for _, at in prompt.events]
            assert times == sorted(times), prompt


@pytest.mark.slow
def test_a_run_that_ends_with_an_error_sends_its_last_traces(simulate: Callable[[str], Any]) -> None:
    run = simulate(SETTINGS.format(steps=8, tracker="tensorboard"))
    with OtlpReceiver() as receiver:
        run.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
        run.start("--schedule.max_useless_groups", "40", "--simulation.solve_rate", "0.000001")
        assert run.wait() == 1, run.output()
        told = re.search(r"(\d+) groups in a row", run.output())
        useless = sum(record["outcome"] == "zero_gradient" for record in read_ledger(run.run_dir))
        # Results that came together are decided together.
        assert told is not None and int(told[1]) == useless >= 40, run.output()
        assert len(receiver.traces()) >= 40
    run.until_gone()


@pytest.mark.slow
def test_a_tracker_that_hangs_costs_points_and_no_step(simulate: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "trackio.py").write_text("import time\ndef init(**settings): time.sleep(3600)\n")
    run = simulate(SETTINGS.format(steps=8, tracker="trackio"))
    run.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])
    run.start()
    assert run.wait() == 0, run.output()
    assert len(run.lines()) == 8
    log = (run.run_dir / "logs" / "orchestrator.log").read_text()
    assert re.search(r"trackio lacks 8 points", log), log
    run.until_gone()


def test_a_tracker_without_a_login_is_refused_before_anything_starts(
    simulate: Callable[[str], Any], tmp_path: Path
) -> None:
    run = simulate(SETTINGS.format(steps=8, tracker="wandb"))
    run.environment |= {"NETRC": str(tmp_path / "none"), "WANDB_API_KEY": "", "WANDB_MODE": "online"}
    run.start()
    assert run.wait() == 2
    assert 'olmorl-launch: telemetry.tracker = "wandb"' in run.output()
    assert not run.run_dir.exists()
