"""Several hosts on one machine: each with an address, a name, processes, a /tmp and shared memory of its own.

    switch    a network namespace with a bridge: one port a host, where links are cut, muted and delayed
    host      namespaces for network, mounts, names and processes, which end with one kill, like a power cut

Nothing of it can be seen from outside, and the kernel ends all of it with the process that made it, however that dies.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil

NEEDED = ("ip", "bridge", "unshare", "nsenter", "mount")
SHARED_MEMORY_SIZE = "2g"
CODE = [folder for folder in (Path(__file__).resolve().parents[2], Path(sys.prefix)) if folder.is_relative_to("/tmp")]
"""Folders in /tmp that every host needs to run our programs."""
_BRIDGE = "lan"
_DISABLED, _FORWARDING = "0", "3"
_PR_SET_PDEATHSIG = 1
_START_DEADLINE_S = 10.0
_LIBC = ctypes.CDLL(None)

# As on Debian, the host's own name is a loopback address. Code that gives this address to other hosts fails.
_BOOT = """
set -e
hostname "$NAME"
mount -t tmpfs -o size="$SHARED_MEMORY_SIZE" shm /dev/shm
mkdir -p "$OWN_TMP"
mount -t tmpfs tmp "$OWN_TMP"
for folder in "$@"; do
    case "$folder" in
        /tmp/*) mkdir -p "$OWN_TMP/${folder#/tmp/}" && mount --bind "$folder" "$OWN_TMP/${folder#/tmp/}" ;;
    esac
done
mount --rbind "$OWN_TMP" /tmp
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$NAME" > /tmp/.hosts
mount --bind /tmp/.hosts /etc/hosts
echo ready
while sleep 3600; do :; done
"""
_SWITCH = "echo ready; while sleep 3600; do :; done"


def missing() -> str:
    """Why hosts cannot be made here, or an empty string."""
    if programs := [name for name in NEEDED if shutil.which(name) is None]:
        return f"no {', '.join(programs)} on the PATH (Debian: iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


class _Namespace:
    """Namespaces that live exactly as long as their first process. One of processes must be among them, so that the
    others end with that one."""

    def __init__(
        self, kinds: Sequence[str], script: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._holder = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script, "sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"a host did not come up: {self._holder.wait()}")
        (first,) = psutil.Process(self._holder.pid).children()
        self.pid: int = first.pid

    def end(self) -> None:
        """Kill everything in it, at once."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class Host:
    """One host. Its processes see only its files, processes and network, and end with it.

    Args:
        shared: folders that it sees as they are outside, as if on a network file system; the rest of /tmp is its own.
    """

    def __init__(self, lan: Lan, name: str, address: str, shared: Sequence[Path]) -> None:
        self.name = name
        self.address = address
        self._lan = lan
        self._port = f"to-{name}"
        self._delay: subprocess.Popen[bytes] | None = None
        self._is_mute = False
        environment = {
            "NAME": name,
            "OWN_TMP": str(lan.folder / name),
            "SHARED_MEMORY_SIZE": SHARED_MEMORY_SIZE,
        }
        kinds = ("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
        self._namespace = _Namespace(kinds, _BOOT, *map(str, (*CODE, *shared)), env=environment)
        self.pid = self._namespace.pid
        lan.ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        lan.ip("link", "set", self._port, "master", _BRIDGE, "up")
        for arguments in (["link", "set", "lo", "up"], ["link", "set", "eth0", "up"]):
            self._ip(*arguments)
        self._ip("address", "add", f"{address}/24", "dev", "eth0")

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["nsenter", "-t", str(self.pid), "--net", "ip", *arguments], check=True)

    # --- what runs on it --------------------------------------------------------------------------

    def start(self, command: Sequence[str], output: IO[Any] | int | None = None, **env: str) -> subprocess.Popen[str]:
        """Start a program here. Signals to what is returned do not reach it: see `program`."""
        inside = ["--net", "--mount", "--uts", "--ipc", "--pid", f"--wdns={Path.cwd()}"]
        return subprocess.Popen(
            ["nsenter", "-t", str(self.pid), *inside, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**_without_ray(os.environ), **env},
        )

    def run(self, command: Sequence[str], timeout_s: float = 60, **env: str) -> str:
        """Run a program here to its end; returns what it printed."""
        process = self.start(command, subprocess.PIPE, **env)
        output, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"{self.name}: {' '.join(command)}: {output}"
        return output

    def processes(self) -> list[psutil.Process]:
        """All processes here, except the ones that keep the host."""
        here = _process_namespace(self.pid)
        holders = {self.pid, *(child.pid for child in psutil.Process(self.pid).children() if child.name() == "sleep")}
        return [p for p in psutil.process_iter() if p.pid not in holders and _process_namespace(p.pid) == here]

    # --- its link ---------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the plug: both sides lose what is under way, and new connections are refused by their own host."""
        self._lan.ip("link", "set", self._port, "down")

    def mute(self) -> None:
        """Drop every packet silently. The connections stay half open."""
        self._is_mute = True
        self._lan.run("bridge", "link", "set", "dev", self._port, "state", _DISABLED)

    def delay(self, seconds: float) -> None:
        """Deliver every packet later, in both directions."""
        far, near = f"far-{self.name}", f"near-{self.name}"
        self._lan.ip("link", "add", far, "type", "veth", "peer", "name", near)
        self._lan.ip("link", "set", far, "up")
        self._lan.ip("link", "set", near, "master", _BRIDGE, "up")
        self._lan.ip("link", "set", self._port, "nomaster")
        program = [sys.executable, str(Path(__file__).with_name("delay.py")), self._port, far, str(seconds)]
        self._delay = subprocess.Popen(self._lan.inside(*program), stdout=subprocess.PIPE)
        assert self._delay.stdout is not None and self._delay.stdout.readline()

    def heal(self) -> None:
        """Make the link good again."""
        if self._delay is not None:
            self._end_delay()
            self._lan.ip("link", "delete", f"far-{self.name}")
            self._lan.ip("link", "set", self._port, "master", _BRIDGE)
        if self._is_mute:
            self._lan.run("bridge", "link", "set", "dev", self._port, "state", _FORWARDING)
            self._is_mute = False
        # The switch forwards by itself as soon as it has seen that the plug is in.
        self._lan.ip("link", "set", self._port, "up")

    def _end_delay(self) -> None:
        if self._delay is not None and self._delay.stdout is not None:
            self._delay.kill()
            self._delay.wait()
            self._delay.stdout.close()
            self._delay = None

    def kill(self) -> None:
        """End the host and all on it, as a power cut does: no packet says so."""
        self.mute()
        self.end()
        del self._lan.hosts[self.name]

    def end(self) -> None:
        """End the host and all on it; the connections of what ran there are closed."""
        self._end_delay()
        self._namespace.end()


class Lan:
    """Hosts on one switch; all of them end with it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the hosts' own /tmp is mounted, each in a separate namespace."""
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        """Those that live."""
        self._num_hosts = 0

    def __enter__(self) -> Lan:
        self._switch = _Namespace(("--net", "--pid"), _SWITCH)
        self.ip("link", "add", _BRIDGE, "type", "bridge")
        self.ip("link", "set", _BRIDGE, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts.values():
            host.end()
        self._switch.end()

    def add(self, name: str, shared: Sequence[Path] = ()) -> Host:
        """One more host."""
        self._num_hosts += 1
        host = Host(self, name, f"198.18.0.{self._num_hosts}", shared)
        self.hosts[name] = host
        return host

    def inside(self, *command: str) -> list[str]:
        """`command` as it is run on the switch."""
        return ["nsenter", "-t", str(self._switch.pid), "--net", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True)

    def ip(self, *arguments: str) -> None:
        self.run("ip", *arguments)


def program(process: subprocess.Popen[str]) -> psutil.Process:
    """The program behind what `Host.start` returned."""
    give_up = time.monotonic() + _START_DEADLINE_S
    while not (children := psutil.Process(process.pid).children()):
        assert process.poll() is None and time.monotonic() < give_up, "it has ended, or never began"
        time.sleep(0.01)
    return children[0]


def _without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes the Ray settings of this process, which do not apply to other hosts."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def _process_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""
