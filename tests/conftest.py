"""Shared by all tests: their own Ray, which asks for a token like the Ray of a run; the browser; a limit of time."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.deploy.credentials import guard_ray
from olmorl.parent_death import STOP_SIGNALS
from tests.browser import open_browser

# Here, not in a hook or a fixture: Ray reads its environment when it is imported, and another conftest may do that.
guard_ray(own=True)

# Under nohup the tests would ignore a closed terminal, and so would the launchers that they start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_BEGUN_AT = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-within", type=float, metavar="MINUTES", help="skip the slow tests that would start later than this"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--slow-within")
    late = minutes is not None and time.monotonic() - _BEGUN_AT > minutes * 60
    if late and item.get_closest_marker("slow"):
        pytest.skip(f"slow tests start within {minutes:g} minutes (--slow-within), and this machine is slower")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tokens of the tests' runs in their folders, not in the home directory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Fails a module that leaves a process to the tests after it. Dead ones are waited for: psutil cannot read them."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    new = [child for child in psutil.Process().children() if child.pid not in before and not _is_of_a_library(child)]
    _, left = psutil.wait_procs(new, timeout=5)
    assert not left, f"children that no test waited for: {[_command(child) for child in left]}"


@pytest.fixture(autouse=True)
def stop_signals_are_heard() -> Iterator[None]:
    """Fails a test after which programs would start deaf: a launcher that ignores SIGHUP outlives its terminal."""
    before = _deaf_to()
    yield
    assert _deaf_to() <= before, f"this process ignores or blocks {_deaf_to() - before}"


@pytest.fixture(autouse=True)
def ray_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the token of the Ray import after a test, because a command may make its own token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"])


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """Ray on the loopback address, with this process as its driver."""
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        namespace="olmorl",
        object_store_memory=128 << 20,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The real browser."""
    with open_browser() as browser:
        yield browser


def _deaf_to() -> set[str]:
    """Returns the names of the stop signals that this process ignores or blocks."""
    masks = re.findall(r"^Sig(?:Ign|Blk):\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return {number.name for number in STOP_SIGNALS if any(int(mask, 16) >> number - 1 & 1 for mask in masks)}


def _command(process: psutil.Process) -> str:
    """Returns the command line; the name alone for a process that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return process.name()


def _is_of_a_library(process: psutil.Process) -> bool:
    """Whether a library keeps the process as long as this one lives."""
    names = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "wandb-core")
    return any(name in _command(process) for name in names)
