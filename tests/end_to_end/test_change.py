"""A resume with a changed configuration needs confirmation, and every start is recorded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from olmorl import __version__, config
from olmorl.deploy.control import cli

SCHEDULE = """
[schedule]
steps = 3
prompts_per_step = 4
[objective]
preset = "grpo"
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_forgotten_override_is_asked_about_and_every_start_is_kept(simulate: Callable[[str], Any]) -> None:
    run = simulate(SCHEDULE)
    run.start("--schedule.max_lag", "4")
    assert run.wait() == 0, run.output()
    kept = run.run_dir / "config.toml"
    before = kept.read_bytes()
    trained_with = config.load(kept)
    assert trained_with.schedule.max_lag == 4
    assert (trained_with.objective.kl_beta, trained_with.objective.rho) == (0.04, "off")

    number_of_starts = len(list((run.run_dir / "starts").iterdir()))
    run.start("--resume", "--schedule.max_lag", "4")
    assert run.wait() == 0, run.output()
    printed = (run.folder / "output.txt").read_text()
    assert printed.count("finished, all 3 steps are done") == 2, "at its end, and when there is nothing to resume"
    assert len(list((run.run_dir / "starts").iterdir())) == number_of_starts

    run.start("--resume", "--steps", "5")
    assert run.wait() == 2
    said = run.output()
    assert "schedule.steps: 3 -> 5" in said and "schedule.max_lag: 4 -> 1" in said and "--resume --change" in said
    assert kept.read_bytes() == before and len(run.lines()) == 3

    run.start("--resume", "--change", "--steps", "5", "--schedule.max_lag", "4")
    assert run.wait() == 0, run.output()
    assert "changed by this start: schedule.steps: 3 -> 5" in run.output()
    assert len(run.lines()) == 5 and config.load(kept).schedule.steps == 5

    first, second = sorted((run.run_dir / "starts").iterdir())
    assert config.load(first) == trained_with and config.load(second) == config.load(kept)
    assert f"# olmorl {__version__}\n" in first.read_text()
    assert "--resume --change --steps 5 --schedule.max_lag 4\n" in second.read_text()


def test_a_change_while_the_run_goes_on_survives_the_death_of_each_process(
    simulate: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate("[schedule]\nsteps = 400\nprompts_per_step = 4\n[checkpoint]\nevery = 10\n")

    def set_key(key: str, value: str) -> int:
        capsys.readouterr()
        assert cli.main([str(run.run_dir), "set", key, value, "--json"]) == 0
        step: int = json.loads(capsys.readouterr().out)["step"]
        return step

    run.start()
    run.until_step(3)
    first = set_key("learner.learning_rate", "5e-7")
    os.kill(run.roster()["orchestrator"]["pid"], signal.SIGKILL)
    run.until(lambda: run.lines()[-1:] and run.lines()[-1]["incarnation"] == 2)
    run.until_step(first + 2)
    assert cli.main([str(run.run_dir), "set", "sampling.temperature", "0.7"]) == 2
    assert "--resume --change --sampling.temperature 0.7" in capsys.readouterr().err
    second = set_key("learner.learning_rate", "2e-7")
    run.signal(signal.SIGKILL)
    run.wait()
    run.start("--resume")
    run.until(lambda: run.lines()[-1:] and run.lines()[-1]["incarnation"] == 3)
    run.until_step(second + 2)
    assert cli.main([str(run.run_dir), "stop"]) == 0
    run.wait()
    output = run.output()
    assert (
        f"changed while the run went on, and kept: learner.learning_rate: 5e-07 -> 2e-07 from step {second}" in output
    )
    rates = [line["lr"] for line in run.lines()]
    wanted = [1e-6] * (first - 1) + [5e-7] * (second - first)
    assert rates == wanted + [2e-7] * (len(rates) - len(wanted))
