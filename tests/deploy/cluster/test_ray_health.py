"""A run whose Ray is lost ends by name, also when it hangs in a call to that Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from olmorl.deploy.cluster.ray_health import LOOK_S, Head

# Daemons are told by their names. They are programs that sleep here.
PROGRAM = """
import asyncio, functools, subprocess, sys, time
from pathlib import Path
from olmorl.deploy.cluster import ray_health
from olmorl.errors import RunEnded

folder, who, patience_s, hangs = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4] == "hangs"
daemons = {name: subprocess.Popen([folder / name, "300"]) for name in ("gcs_server", "raylet")}
while not all(Path(f"/proc/{daemon.pid}/comm").read_text().strip() == name for name, daemon in daemons.items()):
    time.sleep(0.01)
ray_health._PATIENCE_S = patience_s
silent = set()


def ask(name):
    time.sleep(300 if name in silent else 0)


asks = {name: functools.partial(ask, name) for name in daemons}
ray = ray_health.RayWatch(ray_health.OwnDaemons(asks, 2.0))
if who.startswith("hung "):
    silent.add(who.removeprefix("hung "))
    who = ""
if who:
    daemons[who].kill()
wait_s = 60.0 if who or silent else 4.0
if hangs:
    time.sleep(300)
try:
    asyncio.run(asyncio.wait_for(ray.raise_when_lost(lambda cause: print('last act:', cause)), wait_s))
except RunEnded as error:
    ray.release()
    ends = sorted(daemon.wait(30) for daemon in daemons.values())
    print(error, ends, ray.broken)
except TimeoutError:
    ray.release()
    for daemon in daemons.values():
        daemon.kill()
    time.sleep(1.5)
    print("goes on", ray.broken)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a program that sleeps under the name of each daemon."""
    sleep = shutil.which("sleep")
    assert sleep
    for name in ("gcs_server", "raylet"):
        shutil.copy(sleep, tmp_path / name)
    return tmp_path


def play(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize("who", ["gcs_server", "raylet"])
def test_the_death_of_a_daemon_ends_the_other_and_the_run(folder: Path, who: str) -> None:
    done = play(folder, who, "60", "")
    assert done.stdout == (
        f"{who} of the run's own Ray died; --resume goes on from the last checkpoint [-9, -9] True\n"
    ), done.stderr


@pytest.mark.parametrize("who", ["gcs_server", "raylet"])
def test_the_silence_of_a_daemon_ends_both_and_the_run(folder: Path, who: str) -> None:
    done = play(folder, f"hung {who}", "60", "")
    assert done.stdout == (
        f"{who} of the run's own Ray has not answered for 2 s; --resume goes on from the last checkpoint "
        "[-9, -9] True\n"
    ), done.stderr


def test_a_launcher_that_hangs_in_a_call_ends_all_the_same(folder: Path) -> None:
    done = play(folder, "raylet", "0.2", "hangs")
    assert done.returncode == 1
    assert "olmorl-launch: raylet of the run's own Ray died; --resume goes on" in done.stderr


def test_while_both_live_and_after_the_release_nothing_happens(folder: Path) -> None:
    assert play(folder, "", "0.2", "").stdout == "goes on False\n"


class Questions:
    """The requests to a head. The head can be made silent, or made to refuse."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.refuses = False
        self.number = 0

    def __call__(self) -> None:
        self.number += 1
        if self.refuses:
            raise ConnectionError("refused")
        self.answers.wait(20)


def looked_until_lost(head: Head, limit: int) -> int:
    """How often it takes until the head counts as lost."""
    return next((i for i in range(1, limit) if head.lost()), limit)


def test_a_head_that_keeps_quiet_is_lost_after_three_quarters_of_what_ray_waits() -> None:
    head = Head("198.18.0.1:6379", Questions(), 40 * LOOK_S)
    assert looked_until_lost(head, 1000) == 30
    assert head.lost() == (
        "Ray's head at 198.18.0.1:6379 has not answered for 15 s: start Ray on it and on all hosts again"
    )


def test_a_head_that_refuses_is_asked_again_and_lost() -> None:
    ask = Questions()
    ask.refuses = True
    head = Head("198.18.0.1:6379", ask, 40 * LOOK_S)
    while ask.number < 2:
        time.sleep(0.01)
    assert looked_until_lost(head, 1000) == 30


def test_a_head_that_answers_again_in_time_was_never_lost() -> None:
    ask = Questions()
    head = Head("198.18.0.1:6379", ask, 40 * LOOK_S)
    assert looked_until_lost(head, 25) == 25
    ask.answers.set()
    while ask.number < 2:
        time.sleep(0.01)
    assert looked_until_lost(head, 25) == 25
