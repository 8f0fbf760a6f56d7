"""The lock of a run directory: one launcher at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from olmorl.errors import ConfigError, ResourceError, unwritable
from olmorl.run_dir import RunFiles

BEAT_S = 2.0
PATIENCE_S = 15.0
"""A launcher on another host without a heartbeat for so long is dead."""


def end_at_once(why: str) -> None:
    """End this process at once: the run belongs to another launcher now."""
    print(f"olmorl-launch: {why}", file=sys.stderr, flush=True)
    os._exit(1)


class RunLock:
    """One launcher at a time owns a run directory. A dead launcher loses it, on any host.

    On one host the kernel releases the lock of a dead process. Shared storage may do so late, or never. So the owner
    writes heartbeats to the file, and ends at once when the file has another owner.
    """

    def __init__(
        self,
        run_dir: Path,
        beat_s: float = BEAT_S,
        patience_s: float = PATIENCE_S,
        on_loss: Callable[[str], None] = end_at_once,
    ) -> None:
        self._path = RunFiles(run_dir).lock
        self._beat_s = beat_s
        self._patience_s = patience_s
        self._on_loss = on_loss
        self._file = -1
        self._beats = 0
        self._over = threading.Event()

    def __enter__(self) -> RunLock:
        locked, owner = self._lock(), self._read()
        elsewhere = bool(owner) and owner["host"] != socket.gethostname()
        if elsewhere and self._lives(owner):
            self._refuse(owner)
        if elsewhere and not locked:
            # The storage has not noticed that the owner's host is lost. A new file has a new lock.
            os.close(self._file)
            self._path.unlink(missing_ok=True)
            locked = self._lock()
        if not locked:
            self._refuse(owner)
        self._beat()
        self._beating = threading.Thread(target=self._keep_beating, daemon=True)
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._beating.join()
        with suppress(OSError):
            os.truncate(self._file, 0)
        os.close(self._file)

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise unwritable(self._path.parent, error) from None

    def _lock(self) -> bool:
        self._file = self._open()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ResourceError(
                f"{self._path}: the storage has no locks (flock: {error.strerror}): mount it with them "
                "(Lustre: -o flock), or set run.directory to storage with locks"
            ) from None
        return True

    def _refuse(self, owner: dict[str, Any]) -> NoReturn:
        os.close(self._file)
        who = f"process {owner['pid']} on {owner['host']}" if owner else "it has just started"
        raise ConfigError(f"{self._path.parent}: another launcher ({who}) runs here; stop it, or take another --name")

    def _read(self) -> dict[str, Any]:
        """The last heartbeat; empty when no launcher owns the run."""
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return found
        return {}

    def _lives(self, owner: dict[str, Any]) -> bool:
        give_up = time.monotonic() + self._patience_s
        while time.monotonic() < give_up:
            time.sleep(self._patience_s / 10)
            if self._read() not in (owner, {}):
                return True
        return False

    def _beat(self) -> None:
        self._beats += 1
        beat = {"host": socket.gethostname(), "pid": os.getpid(), "beat": self._beats}
        # Of constant length, so that it also fits on a full disk. Without heartbeats this launcher would count as dead.
        with suppress(OSError):
            os.pwrite(self._file, json.dumps(beat).ljust(200).encode(), 0)

    def _keep_beating(self) -> None:
        while not self._over.wait(self._beat_s):
            owner = self._read()
            if owner and (owner["host"], owner["pid"]) != (socket.gethostname(), os.getpid()):
                self._on_loss(f"the launcher {owner['pid']} on {owner['host']} has taken the run over")
                return
            self._beat()
