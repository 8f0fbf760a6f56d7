"""The launcher's own Ray has no daemon that a run does not use. A signal while it starts ends it soon."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
SIGNALLED_ALL_THE_TIME = """
import os, signal, threading
from olmorl.deploy.cluster.local_ray import OwnRay

heard, started = [], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))

def signal_often():
    while not started.wait(0.02):
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=signal_often, daemon=True).start()
ray = OwnRay(1, "signalled")
started.set()
ray.end(keep_logs=False)
print(len(heard))
"""


def test_no_stack_is_printed_for_a_signal_while_ray_starts() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED_ALL_THE_TIME], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 5
    assert "SIGTERM received" not in done.stderr and "logging.cc" not in done.stderr


SIGNALLED_AT_THE_FIRST_DAEMON = """
import os, signal, threading, time
from olmorl.deploy.control import signals
from olmorl.deploy.cluster.local_ray import OwnRay, _children, compat

def signal_at_the_first_daemon():
    while not any("gcs_server" in word for child in _children() for word in child.cmdline()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

signals.install()
signals.begin()
with signals.held():
    threading.Thread(target=signal_at_the_first_daemon, daemon=True).start()
    try:
        OwnRay(1, "signalled")
    except signals.Interrupted as asked:
        print(asked, asked.exit_code, compat.daemons_start(), _children())
"""


def test_a_signal_while_its_daemons_start_ends_them_and_their_files(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="o", dir="/tmp") as folder:  # short, for sockets have short names
        done = subprocess.run(
            [sys.executable, "-c", SIGNALLED_AT_THE_FIRST_DAEMON],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "RAY_TMPDIR": folder, "TMPDIR": str(tmp_path)},
        )
        assert done.stdout == "SIGTERM 143 True []\n", done.stderr
        for place in (Path(folder), tmp_path):
            assert [path for path in place.rglob("*") if not path.is_dir() or path.is_symlink()] == []


DAEMONS = """
from olmorl.deploy.cluster.local_ray import OwnRay, _children
import ray

own = OwnRay(1, "daemons")
print(oct(own._session.parent.parent.stat().st_mode & 0o777))
words = [word for child in _children() for word in child.cmdline()]
print([name for name in ("dashboard.py", "monitor.py", "log_monitor.py") if any(word.endswith(name) for word in words)])
print(ray.get(ray.remote(lambda: 42).remote()))
own.end(keep_logs=False)
print(_children())
"""


def test_it_works_without_dashboard_autoscaler_and_log_monitor_in_a_private_folder() -> None:
    done = subprocess.run([sys.executable, "-c", DAEMONS], capture_output=True, text=True, check=True)
    assert done.stdout == "0o700\n[]\n42\n[]\n", done.stderr
