"""Ctrl-C or SIGTERM during the start of a run gives one line, the right exit code, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.end_to_end import leftovers
from tests.end_to_end.launching import ROOT, Launch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
MOMENTS = [
    (0.05, signal.SIGINT),
    (0.05, signal.SIGTERM),
    (0.2, signal.SIGINT),
    (0.5, signal.SIGTERM),
    (1.0, signal.SIGINT),
    (3.0, signal.SIGTERM),
    (3.0, signal.SIGINT),
    (3.0, signal.SIGHUP),
    (8.0, signal.SIGTERM),
]
NEWS_OF_THE_START = ("starting", "data:", "waiting for Ray", "reading", "learner:", "engines:")
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


def own_group(command: list[str], output: IO[str], **env: str) -> subprocess.Popen[str]:
    """Start a program as the foreground job of a terminal, which Ctrl-C reaches with all that it has started."""
    return subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        start_new_session=True,
    )


def hears(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a handler for the signal is in place: the interpreter needs a while to come to our first line."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def files_below(folder: Path) -> list[Path]:
    """Every file, socket and link below a folder."""
    return [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]


@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_a_signal_ends_a_start_in_order(
    simulate: Callable[[str], Launch], tmp_path: Path, moment: float, number: signal.Signals
) -> None:
    shared_memory = leftovers.unused()
    # No step is done within half a minute, so that the last moments are before the first step too.
    run = simulate("train_tokens_per_s = 1\n[schedule]\nsteps = 1000\nprompts_per_step = 4\nmax_lag = 2\n")
    run.spawn = own_group
    # Short, for sockets have short names.
    folders = {name: Path(f"/tmp/olmorl-test-{run.mark[:6]}-{name}") for name in ("ray", "tmp")}
    for folder in folders.values():
        folder.mkdir()
    state = tmp_path / "state"
    run.environment = {
        "TMPDIR": str(folders["tmp"]),
        "RAY_TMPDIR": str(folders["ray"]),
        "XDG_STATE_HOME": str(state),
    }
    try:
        began = time.monotonic()
        run.start()
        assert run.process is not None
        # SIGTERM: Python has a handler of its own for the other from the beginning.
        run.until(partial(hears, run.process, signal.SIGTERM))
        time.sleep(max(0.0, moment - (time.monotonic() - began)))
        if number is signal.SIGINT:
            os.killpg(run.process.pid, number)
        else:
            run.signal(number)
        assert run.wait() == 128 + number, run.output()
        assert [line for line in said(run) if NAMES[number] in line], run.output()
        assert len(said(run)) <= 3 and "Traceback" not in run.output(), run.output()
        assert run.processes() == []
        assert [path for folder in (*folders.values(), state) for path in files_below(folder)] == []
        assert not leftovers.staged(run).exists() and not leftovers.unused() - shared_memory
        assert run.lines() == [] and run.roster() == {}
    finally:
        for folder in folders.values():
            remove(folder)


def said(run: Launch) -> list[str]:
    """The output of the launcher, without the lines of the start."""
    lines = (run.folder / "output.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith(NEWS_OF_THE_START)]


def remove(folder: Path) -> None:
    """A test's folder without running processes."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()


def test_what_ctrl_c_leaves_is_seen_by_this_test(simulate: Callable[[str], Any], tmp_path: Path) -> None:
    """The looks above find a process and a file that are left."""
    run = simulate("")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "link").symlink_to("nowhere")
    assert files_below(tmp_path / "x") == [tmp_path / "x" / "link"]
    with (tmp_path / "output").open("w") as output:
        process = own_group(["sleep", "60"], output, OLMORL_TEST_RUN=run.mark)
    assert run.processes() == [psutil.Process(process.pid)]
    process.kill()
    process.wait()
