"""A Ray cluster on the hosts of a `Lan`, with token authentication; the launcher runs on the head, without CPUs."""

from __future__ import annotations

import getpass
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
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
        self._cpus = {self.head.name: 0}
        self._start_head()

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
        self._cpus |= dict.fromkeys(names, cpus)
        self._join(hosts)
        return hosts

    def kill_head(self) -> None:
        """End what knows of all hosts; the head's host lives on, and the launcher on it."""
        for process in self._of_ray(self.head, "gcs_server"):
            process.kill()

    @property
    def has_head(self) -> bool:
        """Whether there is a cluster at all."""
        return bool(self._of_ray(self.head, "gcs_server"))

    def start_again(self) -> None:
        """A new cluster on the hosts that there are."""
        for host in self.hosts.values():
            for process in self._of_ray(host, *RAYS_OWN):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._start_head()
        self._join([host for host in self.hosts.values() if host is not self.head])

    @staticmethod
    def _of_ray(host: Host, *names: str) -> list[psutil.Process]:
        return [process for process in host.processes() if process.name() in names]

    def _start_head(self) -> None:
        self._finish(self.head, self._start(self.head, "--head", f"--port={PORT}", "--include-dashboard=false"))

    def _join(self, hosts: Sequence[Host]) -> None:
        starting = [self._start(host, f"--address={self.address}") for host in hosts]
        for host, process in zip(hosts, starting, strict=True):
            self._finish(host, process)

    def spawn(self, command: Sequence[str], output: IO[str], **env: str) -> subprocess.Popen[str]:
        """Start a program on the head."""
        return self.head.start(command, output, **self.environment, **env)

    def control(self, run_dir: Path, *arguments: str) -> Any:
        """Run `olmorl-ctl` on the head; returns the JSON it prints."""
        command = [sys.executable, "-m", "olmorl.deploy.control.cli", str(run_dir), *arguments, "--json"]
        return json.loads(self.head.run(command, **self.environment))

    def left_behind(self) -> list[str]:
        """Processes and files in shared memory that should not exist, on all hosts."""
        found = [(host.name, process.name()) for host in self.hosts.values() for process in programs(host)]
        files = [(host.name, name) for host in self.hosts.values() for name in host.run(["ls", "/dev/shm"]).split()]
        return [f"{name} on {host}" for host, name in (*found, *files) if name != _KEPT]

    def _start(self, host: Host, *arguments: str) -> subprocess.Popen[str]:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [
            *(ray, "start", *arguments),
            f"--node-ip-address={host.address}",
            f"--num-cpus={self._cpus[host.name]}",
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
    """The processes on the host, without Ray's daemons."""
    return [process for process in host.processes() if process.name() not in RAYS_OWN]
