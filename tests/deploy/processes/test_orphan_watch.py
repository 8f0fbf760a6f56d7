"""How long a run waits for a launcher."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from olmorl.config import Supervision
from olmorl.deploy.processes.orphan_watch import LauncherPresence, OrphanWatch


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


def test_a_run_is_needed_while_a_launcher_looks_at_it(clock: Hands) -> None:
    launcher = LauncherPresence(Supervision(launcher_deadline_s=60), clock)
    clock.time += 59
    assert launcher.run_is_needed([], overdue=True)
    launcher.note()
    clock.time += 59
    assert launcher.run_is_needed([], overdue=True)
    clock.time += 1
    assert not launcher.run_is_needed([], overdue=False)


def test_a_run_without_a_launcher_is_needed_while_all_ranks_train(clock: Hands) -> None:
    launcher = LauncherPresence(Supervision(launcher_deadline_s=60), clock)
    clock.time += 3600
    assert launcher.run_is_needed([clock.time - 29, clock.time], overdue=False)
    assert not launcher.run_is_needed([clock.time - 30, clock.time], overdue=False), "one of them is silent"
    assert not launcher.run_is_needed([clock.time, clock.time], overdue=True)


def test_a_process_ends_once_it_has_not_been_needed_for_the_deadline() -> None:
    answers = [True, True, False, False, True]
    began, ended, causes = time.monotonic(), threading.Event(), []

    def end(cause: str) -> None:
        causes.append(cause)
        ended.set()

    OrphanWatch(Supervision(launcher_deadline_s=2.0), lambda: bool(answers and answers.pop(0)), end).start()
    assert ended.wait(10)
    assert answers == [] and time.monotonic() - began >= 5 * 0.5 + 2.0
    assert causes[0].startswith("for 2 s there was no launcher, and no learner that trains")


def test_an_orphan_ends_even_if_its_last_act_fails() -> None:
    code = """
from olmorl.deploy.processes import orphan_watch
def sweep(): raise FileNotFoundError("another was first")
orphan_watch.GRACE_S, orphan_watch.named_actors.leave = 0, lambda: print("left", flush=True)
orphan_watch.end("nobody needs it", sweep)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "left\n"), done.stderr
