"""One launcher at a time, on one host and on several."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from olmorl.deploy.supervision.run_lock import RunLock
from olmorl.errors import ConfigError, ResourceError


@contextmanager
def owned(run_dir: Path, host: str, *, beats: bool = False, locked: bool = True) -> Iterator[Path]:
    """A lock file as a launcher on `host` has it; `locked`: as far as the storage knows."""
    path = run_dir / ".lock"
    over = threading.Event()

    def beat() -> None:
        number = 1
        while not over.wait(0.05):
            number += 1
            path.write_text(json.dumps({"host": host, "pid": 1, "beat": number}))

    path.write_text(json.dumps({"host": host, "pid": 1, "beat": 1}))
    beating = threading.Thread(target=beat)
    with path.open() as file:
        if locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        if beats:
            beating.start()
        yield path
        over.set()
        if beats:
            beating.join()


def taken(run_dir: Path) -> bool:
    """Whether a launcher may run here now."""
    try:
        with RunLock(run_dir, patience_s=0.5):
            owner = json.loads((run_dir / ".lock").read_text())
            assert (owner["host"], owner["pid"]) == (socket.gethostname(), os.getpid())
            return True
    except ConfigError:
        return False


def test_a_second_launcher_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(ConfigError, match=rf"process {os.getpid()} on .* stop it, or take"):
        RunLock(tmp_path).__enter__()
    assert taken(tmp_path)


def test_a_storage_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ResourceError, match=r"the storage has no locks \(flock: No locks available\)"),
        RunLock(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("folder", "why"), [("file", "File exists"), ("file/t", "Not a directory"), ("/proc/t", "No ")]
)
def test_where_no_run_can_be_is_said_with_the_fix(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=f"{folder}: {why}.*: set run.directory"), RunLock(tmp_path / folder):
        pass


def test_on_this_host_the_file_lock_decides(tmp_path: Path) -> None:
    with owned(tmp_path, socket.gethostname()):
        assert not taken(tmp_path), "however long it has not beaten"
    with owned(tmp_path, socket.gethostname(), locked=False):
        assert taken(tmp_path)


@pytest.mark.parametrize("locked", [True, False])
def test_on_another_host_it_lives_while_it_beats_with_and_without_storage_locks(tmp_path: Path, locked: bool) -> None:
    with owned(tmp_path, "elsewhere", beats=True, locked=locked):
        assert not taken(tmp_path)
    with owned(tmp_path, "elsewhere", locked=locked):
        assert taken(tmp_path)


def test_a_launcher_whose_run_was_taken_over_ends_at_once(tmp_path: Path) -> None:
    ended: list[str] = []
    with RunLock(tmp_path, beat_s=0.05, on_loss=ended.append):
        (tmp_path / ".lock").unlink()
        with owned(tmp_path, "elsewhere") as path:
            give_up = time.monotonic() + 10
            while not ended and time.monotonic() < give_up:
                time.sleep(0.01)
            assert json.loads(path.read_text())["host"] == "elsewhere"
    assert ended == ["the launcher 1 on elsewhere has taken the run over"]
