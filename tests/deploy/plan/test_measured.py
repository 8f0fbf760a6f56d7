"""The rates of a finished run are found again, and a plan with them predicts that run and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from olmorl.deploy.plan.figures import Figures
from olmorl.deploy.plan.measured import FinishedRun, finished_run, fit_line
from olmorl.deploy.plan.sweep import choice_of, predict
from olmorl.errors import DataError

from .conftest import build_recipe, run_of

Finished = Callable[..., Path]


def check_near(predicted: Figures, real: Figures, within: float, *, lag: float, wait: float) -> None:
    for name in ("step_s", "trained_per_s", "generated_per_s"):
        assert getattr(predicted, name) == pytest.approx(getattr(real, name), rel=within), name
    assert predicted.lag == pytest.approx(real.lag, abs=lag)
    assert predicted.wait == pytest.approx(real.wait, abs=wait)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Of one run for all tests: measuring takes seconds."""
    return finished_run(run_of(build_recipe(tmp_path_factory.mktemp("runs"))))


def test_the_rates_of_a_run_are_found(measured: FinishedRun) -> None:
    found = measured.workload.simulation
    full = 32 * found.tokens_per_s / (1 + found.batch_slowdown * 31)
    assert full == pytest.approx(32 * 20.0 / (1 + 0.02 * 31), rel=0.05)
    assert found.train_tokens_per_s == pytest.approx(300.0, rel=0.02)
    assert found.train_overhead_s == pytest.approx(0.0, abs=0.05)
    lengths = [answer.num_tokens for group in measured.workload.groups for answer in group]
    assert found.mean_tokens == pytest.approx(np.mean(lengths))


def test_a_plan_predicts_the_run_that_it_is_from(measured: FinishedRun) -> None:
    prediction = predict(measured.settings, measured.workload, choice_of(measured.settings), 8 * measured.steps)
    check_near(prediction.figures, measured.figures, 0.05, lag=0.1, wait=0.03)


@pytest.mark.slow
def test_a_plan_predicts_runs_with_another_lag_and_batch(measured: FinishedRun, finished: Finished) -> None:
    for name, changes in (("lag0", {"schedule__max_lag": 0}), ("batch16", {"schedule__prompts_per_step": 16})):
        other = finished_run(finished(run__name=name, run__seed=1, **changes))
        choice = choice_of(other.settings)
        prediction = predict(measured.settings, measured.workload, choice, choice.batch * other.steps)
        check_near(prediction.figures, other.figures, 0.15, lag=0.3, wait=0.06)


def test_a_fixed_part_is_found_and_noise_gives_none() -> None:
    tokens = np.linspace(8000, 12_000, 20)
    noise = np.where(np.arange(20) % 2, 0.02, -0.02)
    assert fit_line(tokens, 0.5 + tokens / 10_000 + noise) == (
        pytest.approx(0.5, abs=0.05),
        pytest.approx(1e-4, rel=0.05),
    )
    assert fit_line(tokens, tokens / 10_000 + 10 * noise)[0] == 0.0
    assert fit_line(np.full(5, 100.0), np.full(5, 2.0)) == (0.0, pytest.approx(0.02))


def test_steps_for_which_nothing_was_drawn_are_not_counted(finished: Finished) -> None:
    run_dir = finished(run__name="ended", schedule__steps=20)
    before = finished_run(run_dir)
    draining = before.settings.schedule.batches_ahead + 1
    metrics = run_dir / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines[-draining - 2 :]:
        line["data_ended"] = 1
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert finished_run(run_dir).steps == before.steps - 2


def test_what_is_no_finished_run_is_named(tmp_path: Path, finished: Finished) -> None:
    with pytest.raises(DataError, match=r"no config.toml, so this is no run directory"):
        finished_run(tmp_path)
    with pytest.raises(DataError, match=r"0 step\(s\) to measure, and 3 are needed.* 10 steps or more"):
        finished_run(finished(run__name="short", schedule__steps=5, checkpoint__every=5))
    run_dir = finished(run__name="older")
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"tokens_generated_total"', '"tokens_total"'))
    with pytest.raises(DataError, match=r"metrics.jsonl: the line of step \d+ has no tokens_generated_total"):
        finished_run(run_dir)
    run_dir = finished(run__name="bare")
    for path in (run_dir / "rollouts").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"rollouts: no groups"):
        finished_run(run_dir)
    (run_dir / "config.toml").write_text("[schedule]\nsteps = 'many'\n")
    with pytest.raises(DataError, match=r"config.toml.*\n.*steps"):
        finished_run(run_dir)
