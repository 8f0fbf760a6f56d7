"""A signal to one process changes nothing. A hung Ray daemon ends the run, but not its last checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest

from olmorl.learner.storage import checkpoint_dir
from olmorl.run_dir import RunFiles
from tests.end_to_end import leftovers
from tests.end_to_end.launching import Launch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
RECIPE = "[schedule]\nsteps = {}\nprompts_per_step = 4\nmax_lag = 2\n[supervision]\npatience = {}\n"
DAEMONS = pytest.mark.parametrize("name", ["gcs_server", "raylet"])


def daemon(run: Launch, name: str) -> psutil.Process:
    """A daemon of the run's own Ray."""
    return next(process for process in run.processes() if process.name() == name)


def test_a_signal_to_one_process_is_ignored_and_the_run_goes_on(simulate: Callable[[str], Launch]) -> None:
    run = simulate(RECIPE.format(1000, 1))
    run.start()
    run.until_step(2)
    roster = run.roster()
    assert {"orchestrator", "redis", "redis-server", "actor-0", "learner-0"} <= set(roster)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        for name in roster.keys() - {"launcher"}:
            psutil.Process(roster[name]["pid"]).send_signal(number)
        for name in ("gcs_server", "raylet"):
            daemon(run, name).send_signal(number)
        run.until_step(len(run.lines()) + 3)
    assert run.roster() == roster, "nothing was started again"
    run.signal(signal.SIGTERM)
    assert run.wait(60) == 0, run.output()


@DAEMONS
def test_a_ray_daemon_that_hangs_ends_the_run_with_the_cause(simulate: Callable[[str], Launch], name: str) -> None:
    run = simulate(RECIPE.format(1000, 0.25))
    run.start()
    run.until_step(2)
    daemon(run, name).suspend()
    assert run.wait(60) == 1, run.output()
    cause = f"{name} of the run's own Ray has not answered for 7.5 s; --resume goes on from the last checkpoint"
    assert cause in (run.folder / "output.txt").read_text()
    assert RunFiles(run.run_dir).ended.read_text() == f"failed: {cause}"
    assert cause in (RunFiles(run.run_dir).logs / "launcher.log").read_text()
    run.until_gone()
    assert not leftovers.staged(run).exists()


@DAEMONS
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stop_with_a_lost_ray_daemon_still_writes_the_last_checkpoint(
    simulate: Callable[[str], Launch], name: str, fault: signal.Signals
) -> None:
    # A checkpoint is written after the stop alone, and the stop is asked for before the loss is noticed.
    run = simulate(RECIPE.format(1000, 0.25) + "[checkpoint]\nevery = 1000\n")
    run.start()
    run.until_step(2)
    lost = daemon(run, name)
    run.signal(signal.SIGTERM)
    lost.send_signal(fault)
    assert run.wait(60) == 0, run.output()
    files = RunFiles(run.run_dir)
    assert max(checkpoint_dir.steps(files.checkpoints)) == run.lines()[-1]["step"]
    assert files.ended.read_text().startswith("stopped: SIGTERM, with a checkpoint")
    run.until_gone()
    assert not leftovers.staged(run).exists()


def test_a_daemon_that_hangs_after_the_last_step_changes_nothing(simulate: Callable[[str], Launch]) -> None:
    run = simulate(RECIPE.format(6, 0.25))
    run.start()
    run.until_step(4)
    daemon(run, "gcs_server").suspend()
    assert run.wait(90) == 0, run.output()
    said = (run.folder / "output.txt").read_text()
    assert "all 6 steps are done" in said
    assert said.index("all 6 steps are done") < said.index("gcs_server of the run's own Ray has not answered"), said
    run.until_gone()
