"""A Ray cluster on the hosts of a `Lan`, with token authentication; the launcher runs on the head, without CPUs."""

from __future__ import annotations

import getpass
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from tests.hosts.lan import Host, Lan

PORT = 6379
START_DEADLINE_S = 240.0
RAYS_OWN = ("raylet", "gcs_server", "python3", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_KEPT = "ray::IDLE"
"""A process that Ray keeps for the next one who asks."""
_OBJECTS_BYTES = 256 << 20


class RayCluster:
    """Each host of it that lives is one Ray node, under the host's own address."""

    def __init__(self, lan: Lan, shared: Sequence[Path]) -> None:
        """`shared` are the folders that all hosts see."""
        self._lan = lan
        # As if the hosts had run before: what torch compiles once is there.
        compiled = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
        compiled.mkdir(exist_ok=True)
        self._shared = [*shared, compiled]
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(24),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "200",
            "OMP_NUM_THREADS": "1",
        }
        self.head = lan.add("head", self._shared)
        self._finish(self.head, self._start(self.head, 0, "--head", f"--port={PORT}", "--include-dashboard=false"))

    @property
    def hosts(self) -> dict[str, Host]:
        """Those that live, by name."""
        return self._lan.hosts

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def join(self, *names: str, cpus: int = 1) -> list[Host]:
        """New hosts, side by side."""
        hosts = [self._lan.add(name, self._shared) for name in names]
        starting = [self._start(host, cpus, f"--address={self.address}") for host in hosts]
        for host, process in zip(hosts, starting, strict=True):
            self._finish(host, process)
        return hosts

    def spawn(self, command: Sequence[str], output: IO[str], **env: str) -> subprocess.Popen[str]:
        """Start a program on the head."""
        return self.head.start(command, output, **self.environment, **env)

    def control(self, run_dir: Path, *arguments: str) -> Any:
        """Run `olmorl-ctl` on the head; returns the JSON it prints."""
        command = [sys.executable, "-m", "olmorl.deploy.control", str(run_dir), *arguments, "--json"]
        return json.loads(self.head.run(command, **self.environment))

    def left_behind(self) -> list[str]:
        """What is there, on any host, although nobody has asked for it: processes, and files in shared memory."""
        found = [(host.name, process.name()) for host in self.hosts.values() for process in programs(host)]
        files = [(host.name, name) for host in self.hosts.values() for name in host.run(["ls", "/dev/shm"]).split()]
        return [f"{name} on {host}" for host, name in (*found, *files) if name != _KEPT]

    def _start(self, host: Host, cpus: int, *arguments: str) -> subprocess.Popen[str]:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [
            *(ray, "start", *arguments),
            f"--node-ip-address={host.address}",
            f"--num-cpus={cpus}",
            f"--object-store-memory={_OBJECTS_BYTES}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
        ]
        return host.start(command, subprocess.PIPE, **self.environment)

    @staticmethod
    def _finish(host: Host, process: subprocess.Popen[str]) -> None:
        output, _ = process.communicate(timeout=START_DEADLINE_S)
        assert process.returncode == 0, f"Ray did not start on {host.name}: {output}"


def programs(host: Host) -> list[psutil.Process]:
    """What runs there but for Ray's own daemons."""
    return [process for process in host.processes() if process.name() not in RAYS_OWN]
