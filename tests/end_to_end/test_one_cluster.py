"""Two runs of one name attach to one Ray cluster at the same time: neither notices the other."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.deploy.credentials import run_id
from tests.end_to_end import recipes
from tests.end_to_end.test_supervision import SETTINGS, ctl
from tests.waiting import lives

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray cluster of one node on this machine."""
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24)}.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    options = [
        f"--port={port}",
        f"--ray-client-server-port={free_port()}",
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=12", *options,
               "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats",
               f"--object-store-memory={256 << 20}"]  # fmt: skip
    with (tmp_path / "ray.txt").open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as ray:
        yield f"127.0.0.1:{port}"
        ended = [ray, *psutil.Process(ray.pid).children(recursive=True)]
        ray.terminate()
        ray.wait(60)
        assert not [*filter(lives, ended[1:])]


def test_two_runs_share_a_cluster_and_one_of_them_is_killed(
    cluster: str, tmp_path: Path, check_history: Callable[[Any, int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        runs = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            runs.append(recipes.simulated(tmp_path / name, SETTINGS))
            stack.callback(runs[-1].end)
            runs[-1].start("--ray-address", cluster)
        one, two = runs
        for run in runs:
            run.until_step(4)
        ctl(one, capsys, "actors", "--count", "3")
        one.until(lambda: one.lines()[-1]["engines"] == 3)
        assert {line["engines"] for line in two.lines()[2:]} == {2}
        # The launcher of one is killed, and starts again: it ends its own processes alone.
        one.signal(signal.SIGKILL)
        one.wait()
        roster = two.roster()
        one.start("--resume", "--ray-address", cluster)
        steps = len(two.lines())
        one.until(lambda: one.lines()[-1]["incarnation"] > 1)
        two.until_step(steps + 4)
        assert two.roster() == roster and {line["incarnation"] for line in two.lines()} == {1}
        ctl(one, capsys, "stop")
        assert one.wait() == 0, one.output()
        two.until_step(len(two.lines()) + 4)
        assert two.roster() == roster
        ctl(two, capsys, "stop")
        assert two.wait() == 0, two.output()
        for run in runs:
            check_history(run, len(run.lines()), 2)
            assert not [path for path in Path("/dev/shm").iterdir() if run_id(run.run_dir) in path.name]
