"""A signal that asks for a stop does not end the processes of a run, and ends the programs that they run for users."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from olmorl.parent_death import STOP_SIGNALS

PROGRAM = """
import os, signal, subprocess, sys, threading
from olmorl.parent_death import STOP_SIGNALS, hear_stop_signals, leave_stop_to_launcher

in_a_thread = threading.Thread(target=leave_stop_to_launcher)
in_a_thread.start()
in_a_thread.join()
for number in STOP_SIGNALS:
    os.kill(os.getpid(), number)
print("goes on", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # as below Ray's daemons
hear_stop_signals()
os.kill(os.getpid(), int(sys.argv[1]))
print("not reached")
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_process_of_a_run_leaves_a_stop_to_the_launcher_and_user_code_hears_it(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(int(number))], capture_output=True, text=True, timeout=60)
    assert done.stdout == "goes on\n"
    assert done.returncode == -number
