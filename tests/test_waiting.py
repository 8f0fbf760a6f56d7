"""What tests measure and see where another process takes the core, or ends while they look."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from tests.waiting import lives, seconds, until, with_command

SHARE = """
import time
from tests.waiting import seconds
wall, own, computed = time.monotonic(), seconds(), time.thread_time()
while time.thread_time() - computed < 0.2:
    pass
computed = time.thread_time() - computed
time.sleep(0.05)
print(time.monotonic() - wall, seconds() - own, computed)
"""


def test_a_wait_for_a_core_does_not_count_and_a_sleep_does() -> None:
    core = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\n"
    busy = subprocess.Popen([sys.executable, "-c", core + "while True: pass"])
    try:
        done = subprocess.run([sys.executable, "-c", core + SHARE], capture_output=True, text=True, timeout=120)
    finally:
        busy.kill()
        busy.wait()
    wall, own, computed = map(float, done.stdout.split())
    assert computed + 0.05 <= own < wall - 0.05, done.stderr


def test_it_goes_on_with_the_wall_clock() -> None:
    began, own = time.monotonic(), seconds()
    time.sleep(0.1)
    assert 0.1 <= seconds() - own <= time.monotonic() - began


def test_a_process_that_ends_while_it_is_looked_at_does_not_live() -> None:
    program = [sys.executable, "-c", "input()", "of this test"]
    child = subprocess.Popen(program, stdin=subprocess.PIPE)
    seen = psutil.Process(child.pid)
    until(lambda: with_command([seen], "of this test") == [seen])
    assert lives(seen) and lives(child.pid)
    child.kill()
    until(lambda: not lives(child.pid))
    assert child.returncode is None and psutil.pid_exists(child.pid), "nobody has waited for it"
    assert with_command([seen], "") == []
    child.communicate()
    assert not lives(seen) and not lives(child.pid) and with_command([seen], "") == []
