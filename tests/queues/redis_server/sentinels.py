"""A primary, its replica and a sentinel that watches them: real servers on the loopback interface."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from olmorl.queues.redis_server.embedded_server import find_server

SERVICE, PASSWORD, SENTINEL_PASSWORD = "queue", "password-of-the-queue", "password-of-the-sentinel"
ENVIRONMENT = {"OLMORL_REDIS_PASSWORD": PASSWORD, "OLMORL_REDIS_SENTINEL_PASSWORD": SENTINEL_PASSWORD}
_PRIMARY = """
requirepass {password}
masterauth {password}
appendonly yes
save ""
repl-diskless-sync yes
repl-diskless-sync-delay 0
maxmemory-policy noeviction
"""
_SENTINEL = """
requirepass {own}
sentinel monitor {service} 127.0.0.1 {primary} 1
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} 1000
sentinel failover-timeout {service} 4000
"""


def until(ready: Callable[[], object], timeout_s: float = 30) -> None:
    """Until something holds; a server that does not answer yet is asked again."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if ready():
                return
        except RedisError as error:
            assert time.monotonic() < deadline, error
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Server:
    """One `redis-server`, and a client of it."""

    def __init__(self, folder: Path, configuration: str, password: str, *mode: str) -> None:
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        path = folder / "redis.conf"
        path.write_text(f"bind 127.0.0.1\nport {self.port}\ndir {folder}\n{configuration}")
        with (folder / "redis.log").open("wb") as log:
            self.process = subprocess.Popen([find_server(), path, *mode], stdout=log, stderr=log)
        self.client = Redis(port=self.port, password=password, socket_timeout=5, decode_responses=True)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


class Watched:
    """`first` is the primary until it is killed; `second` takes over then."""

    def __init__(self, folder: Path) -> None:
        primary = _PRIMARY.format(password=PASSWORD)
        self.first = Server(folder / "first", primary, PASSWORD)
        self.second = Server(folder / "second", f"{primary}replicaof 127.0.0.1 {self.first.port}\n", PASSWORD)
        watch = _SENTINEL.format(own=SENTINEL_PASSWORD, service=SERVICE, primary=self.first.port, password=PASSWORD)
        self.sentinel = Server(folder / "sentinel", watch, SENTINEL_PASSWORD, "--sentinel")
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}/0"

    def until_ready(self) -> None:
        """Until the sentinel would fail over."""
        until(lambda: self.second.client.info("replication")["master_link_status"] == "up")
        until(lambda: self.sentinel.client.sentinel_master(SERVICE)["num-slaves"] == 1)

    def cut(self) -> None:
        """From now on the replica gets nothing of what the primary acknowledges."""
        self.second.process.send_signal(signal.SIGSTOP)
        self.first.client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """The primary dies, and the sentinel has what the replica knows."""
        self.first.process.kill()
        self.second.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for server in (self.sentinel, self.second, self.first):
            server.close()


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """The three of them, ready."""
    servers = Watched(folder)
    try:
        servers.until_ready()
        yield servers
    finally:
        servers.close()
