"""Five ways to stop a run: each ends it with exit code 0, a checkpoint of its last step, and nothing left.

`OLMORL_STOPS=20` stops 20 runs in each way, and 20 of the demo, with its model in `runs/cache`, which `make run` fills.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from olmorl.learner.storage import checkpoint_dir
from olmorl.run_dir import RunFiles
from tests.end_to_end import leftovers
from tests.end_to_end.launching import ROOT, Launch
from tests.end_to_end.test_signals import files_below, remove

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
REPEATS = int(os.environ.get("OLMORL_STOPS", "1"))
LONGEST_S = 10.0
RECIPE = "[schedule]\nsteps = 1000\nprompts_per_step = 4\nmax_lag = 2\n"


class Terminal:
    """The controlling terminal of a session, whose output is read and kept."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.openpty()
        self.output = b""
        self._is_open = True
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def spawn(self, command: list[str], _: IO[str], **env: str) -> subprocess.Popen[Any]:
        """Start a program as the foreground job of this terminal."""
        process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            cwd=ROOT,
            env={**os.environ, **env, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(self._theirs)
        return process

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def close(self) -> None:
        """Close the window: the session gets SIGHUP, and can write no more."""
        if self._is_open:
            self._is_open = False
            self._reading.join()  # a read that waits would hold the terminal open until the launcher prints
            os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):
            while self._is_open:
                if select.select([self._ours], [], [], 0.05)[0]:
                    self.output += os.read(self._ours, 65536)


def to_all(run: Launch, _: Terminal) -> None:
    """As scancel and systemd do, in any order."""
    processes = run.processes()
    random.shuffle(processes)
    for number in (signal.SIGTERM, signal.SIGCONT):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def to_group(run: Launch, _: Terminal) -> None:
    assert run.process is not None
    os.killpg(run.process.pid, signal.SIGTERM)


WAYS: dict[str, tuple[Callable[[Launch, Terminal], None], str]] = {
    "SIGTERM to the launcher": (lambda run, _: run.signal(signal.SIGTERM), "SIGTERM"),
    "SIGTERM to its group": (to_group, "SIGTERM"),
    "SIGTERM to all processes": (to_all, "SIGTERM"),
    "terminal closed": (lambda _, terminal: terminal.close(), "SIGHUP"),
    "Ctrl-C": (lambda _, terminal: terminal.type(b"\x03"), "Ctrl-C"),
}


@pytest.fixture
def folders() -> Iterator[dict[str, Path]]:
    """Temporary folders of Ray and of all other programs. They are short, for sockets have short names."""
    made = {name: Path(f"/tmp/olmorl-stop-{os.urandom(3).hex()}-{name}") for name in ("ray", "tmp")}
    for folder in made.values():
        folder.mkdir()
    yield made
    for folder in made.values():
        remove(folder)


@pytest.fixture
def real(launch: Callable[[str], Launch]) -> Launch:
    """A run with a real engine: on a random policy, or the demo when many runs are stopped."""
    run = launch(
        RECIPE + "[sampling]\ngroup_size = 4\nmax_tokens = 96\n[actors]\nkv_cache_gib = 0.1\nenforce_eager = true\n"
    )
    if REPEATS > 1:
        own = f'name = "test"\ndirectory = "{run.folder}/runs"'
        run.recipe.write_text((ROOT / "deploy/recipes/demo.toml").read_text().replace('name = "demo"', own))
        cache = ROOT / "runs" / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        (run.folder / "runs").mkdir()
        (run.folder / "runs" / "cache").symlink_to(cache)
    return run


def stopped_in_order(run: Launch, folders: dict[str, Path], way: str) -> float:
    """Start a run, stop it after some steps, and check what it leaves; returns how long the stop took, in seconds."""
    stop, name = WAYS[way]
    shared_memory, terminal = leftovers.unused(), Terminal()
    run.spawn = terminal.spawn
    run.environment = {"TMPDIR": str(folders["tmp"]), "RAY_TMPDIR": str(folders["ray"])}
    try:
        run.start()
        run.until_step(2 + random.randrange(3))
        began = time.monotonic()
        stop(run, terminal)
        exit_code = run.wait()
        seconds = time.monotonic() - began
    finally:
        terminal.close()
    shown = terminal.output.decode(errors="replace")[-3000:] + run.output()
    assert exit_code == 0, shown
    files = RunFiles(run.run_dir)
    assert max(checkpoint_dir.steps(files.checkpoints)) == run.lines()[-1]["step"], shown
    assert files.ended.read_text().startswith(f"stopped: {name}")
    assert f"{name}" in (files.logs / "launcher.log").read_text()
    assert run.processes() == []
    assert [path for folder in folders.values() for path in files_below(folder)] == []
    assert not leftovers.staged(run).exists() and not leftovers.unused() - shared_memory
    print(f"{way}: {seconds:.1f} s")
    return seconds


def test_a_closed_terminal_hangs_up_a_program_that_prints_nothing() -> None:
    terminal = Terminal()
    process = terminal.spawn(["sleep", "60"], sys.stdout)
    terminal.close()
    assert process.wait(30) == -signal.SIGHUP


@pytest.mark.parametrize("_", range(REPEATS))
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_leaves_a_checkpoint_of_the_last_step_and_nothing_else(
    simulate: Callable[[str], Launch], folders: dict[str, Path], way: str, _: int
) -> None:
    assert stopped_in_order(simulate(RECIPE), folders, way) < LONGEST_S


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("_", range(REPEATS))
@pytest.mark.parametrize("way", WAYS if REPEATS > 1 else ("SIGTERM to all processes", "Ctrl-C"))
def test_a_stop_of_a_real_run_leaves_the_same(real: Launch, folders: dict[str, Path], way: str, _: int) -> None:
    stopped_in_order(real, folders, way)
