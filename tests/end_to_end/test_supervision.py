"""A run without a model obeys commands and is resumed by another launcher."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.deploy.control import cli
from olmorl.deploy.credentials import token_file

SETTINGS = """
[schedule]
steps = 1000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
"""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def ctl(run: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that a command prints."""
    assert cli.main([str(run.run_dir), *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_orders_are_obeyed_and_a_killed_launcher_is_resumed(
    simulate: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = simulate(SETTINGS)
    run.start()
    run.until_step(2)
    token = token_file(run.run_dir, socket.gethostname())
    assert stat.S_IMODE(token.stat().st_mode) == 0o600

    ctl(run, capsys, "actors", "--count", "3")
    run.until(lambda: sum(actor["state"] == "run" for actor in ctl(run, capsys, "actors")) == 3)
    ctl(run, capsys, "drain", "actor-0")
    run.until(lambda: [actor["name"] for actor in ctl(run, capsys, "actors")] == ["actor-1", "actor-2"])

    ctl(run, capsys, "pause")
    run.until(lambda: ctl(run, capsys, "status")["live"]["leased"] == 0)
    assert ctl(run, capsys, "status")["live"]["state"] == "paused"
    step = ctl(run, capsys, "checkpoint")["step"]
    assert (run.run_dir / "checkpoints" / f"step_{step}" / "complete").exists()
    ctl(run, capsys, "resume")
    run.until_step(step + 2)
    assert ctl(run, capsys, "dead-letters", "--replay") == {"letters": [], "replayed": []}

    monkeypatch.setenv("OLMORL_TOKEN", "guessed")
    assert cli.main([str(run.run_dir), "stop"]) == 2
    assert "wrong token" in capsys.readouterr().err
    monkeypatch.delenv("OLMORL_TOKEN")

    run.signal(signal.SIGKILL)
    run.wait()
    run.until_gone()
    assert cli.main([str(run.run_dir), "pause"]) == 2
    assert "does not answer" in capsys.readouterr().err
    steps = len(run.lines())
    run.start("--resume")
    run.until(lambda: run.lines()[-1]["incarnation"] == 2 and len(run.lines()) > steps)
    assert ctl(run, capsys, "status")["live"]["actor_deaths"] == 0, "what their predecessors were told is not for them"
    ctl(run, capsys, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), 2)
    assert not token.exists()
    assert ctl(run, capsys, "status")["live"] is None


def test_a_stop_is_obeyed_while_the_run_starts(simulate: Callable[[str], Any]) -> None:
    run = simulate(SETTINGS)
    run.start()
    run.until(lambda: "redis" in run.roster())
    run.signal(signal.SIGINT)
    assert run.wait(60) == 130, run.output()
    assert "Ctrl-C: stopping; started processes end first" in run.output()
    assert "stopped while it started; nothing has begun: start it again, without --resume" in run.output()
    assert "stopped while it started" in (run.run_dir / "logs" / "launcher.log").read_text()
    assert "Traceback" not in run.output()
    run.until_gone()
    assert run.roster() == {} and run.lines() == []
