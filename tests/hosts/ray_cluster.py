"""A Ray cluster on the hosts of a `Lan`, with token authentication; the launcher runs on the head, without CPUs."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
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
_AT_ONCE = 2
"""Hosts on which Ray starts side by side. Its agents have 15 s for that, also on a busy machine."""


class RayCluster:
    """Each host of it that lives is one Ray node, under the host's own address."""

    def __init__(
        self, lan: Lan, shared: Sequence[Path], objects_bytes: int = _OBJECTS_BYTES, **environment: str
    ) -> None:
        """`shared` are the folders that all hosts see; each has an object store of `objects_bytes`."""
        self._lan = lan
        self._objects_bytes = objects_bytes
        self._shared = shared
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(24),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "200",
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self.head = lan.add("head", self._shared)
        self._resources = {self.head.name: ("--num-cpus=0",)}
        self._start_head()

    @property
    def hosts(self) -> dict[str, Host]:
        """Those that live, by name."""
        return self._lan.hosts

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def join(self, *names: str, cpus: int = 1, gpus: int = 0) -> list[Host]:
        """New hosts, some of them side by side. Ray takes the GPUs on trust."""
        hosts = [self._lan.add(name, self._shared) for name in names]
        self._resources |= dict.fromkeys(names, (f"--num-cpus={cpus}", f"--num-gpus={gpus}"))
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
        self._start(["--head", f"--port={PORT}", "--include-dashboard=false"], self.head)

    def _join(self, hosts: Sequence[Host]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as executor:
            list(executor.map(partial(self._start, [f"--address={self.address}"]), hosts))

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

    def _start(self, arguments: Sequence[str], host: Host) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [
            *(ray, "start", *arguments, *self._resources[host.name]),
            f"--node-ip-address={host.address}",
            f"--object-store-memory={self._objects_bytes}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
        ]
        host.run(command, START_DEADLINE_S, **self.environment)


def programs(host: Host) -> list[psutil.Process]:
    """The processes on the host, without Ray's daemons."""
    return [process for process in host.processes() if process.name() not in RAYS_OWN]
