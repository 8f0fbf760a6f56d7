"""Files that survive a crash: whole or absent, or append-only with at most one torn line at the end.

`DiskWriter` waits at a write while the disk is full.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from olmorl import disk_space
from olmorl.clock import Clock
from olmorl.errors import DiskFull, ResourceError
from olmorl.learner.waits import Waits
from olmorl.messages import Owner

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 1.0
"""Time between two attempts of a `DiskWriter`."""
_BLOCK_BYTES = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file so that after a crash it is complete or absent.

    Raises:
        ResourceError: the disk is full or refuses the write; nothing has changed then.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.writelines(chunks)
            sync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise unwritable(path, error) from error


def check_room(path: Path) -> None:
    """Write a small file and remove it. Raises DiskFull when there is no room for it."""
    write_whole(path, [bytes(1 << 16)])
    path.unlink(missing_ok=True)


def append(descriptor: int, data: bytes) -> None:
    """Add all of `data` to the end of a file, durably, or nothing of it. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        _write(descriptor, data)
        sync(descriptor)
    except OSError:
        _shorten(descriptor, size)
        raise


def append_soon(path: Path, data: bytes) -> None:
    """Add all of `data` to the end of a file, or nothing of it. The operating system makes it durable later.

    Raises:
        ResourceError: the disk is full or refuses the write.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                _write(file.fileno(), data)
            except OSError:
                _shorten(file.fileno(), size)
                raise
    except OSError as error:
        raise unwritable(path, error) from error


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _shorten(descriptor: int, size: int) -> None:
    with suppress(OSError):
        os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Make a file durable. All durable files of the run directory are synced here."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in `folder` durable. Raises ResourceError if the disk refuses."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(folder, error) from error


def sync_tree(folder: Path) -> None:
    """Make all files and folders under `folder` durable. Raises ResourceError if the disk refuses."""
    for path in (folder, *folder.rglob("*")):
        sync_folder(path)


def cut(path: Path, num_bytes: int) -> bytes:
    """Shorten a file to `num_bytes`, durably; returns the bytes that were cut off."""
    with path.open("r+b") as file:
        file.seek(num_bytes)
        tail = file.read()
        if tail:
            file.truncate(num_bytes)
            sync(file.fileno())
    return tail


def whole_lines(data: bytes) -> int:
    """The number of bytes up to the last line end. A crash tore the line after it."""
    return data.rfind(b"\n") + 1


def newest_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file from the last one on: where each begins, and its bytes with the line end."""
    with path.open("rb") as file:
        begin, rest = file.seek(0, os.SEEK_END), b""
        while begin:
            size = min(begin, _BLOCK_BYTES)
            begin = file.seek(begin - size)
            first, *lines = (file.read(size) + rest).splitlines(keepends=True)
            end = begin + len(first) + sum(map(len, lines))
            for line in reversed(lines):
                end -= len(line)
                if line.endswith(b"\n"):
                    yield end, line
            rest = first
        if rest.endswith(b"\n"):
            yield 0, rest


def end_of_lines(path: Path) -> int:
    """As `whole_lines` for a file, which is read from its end."""
    return next((begin + len(line) for begin, line in newest_lines(path)), 0)


def unwritable(path: Path, error: OSError) -> ResourceError:
    """The error for a run directory that cannot be written, with the fix."""
    if error.errno in _FULL:
        return DiskFull(f"{path}: {error.strerror}: {disk_space.full(path.parent)}; make room there")
    return ResourceError(f"{path}: {error.strerror or error}; repair the folder, then continue with --resume")


class DiskWriter:
    """Repeats a write while the disk is full, until a deadline."""

    def __init__(self, clock: Clock, deadline_s: float, waits: Waits | None = None) -> None:
        """A write that waits for room is listed in `waits`."""
        self._clock = clock
        self._deadline_s = deadline_s
        self._waits = waits

    async def write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Await `write()` until it succeeds; each failure must leave nothing behind.

        Raises:
            DiskFull: there was no room within the deadline.
        """
        try:
            return await write()
        except DiskFull as error:
            log.warning("waiting for room: %s", error)
            what, ends_at = f"room on the disk ({error})", self._clock.now() + self._deadline_s
        if self._waits:
            self._waits.begin(what, Owner.RUN_DIRECTORY, self._deadline_s, urgent=True)
        try:
            return await self._again(write, ends_at)
        finally:
            if self._waits:
                self._waits.end(what)

    async def _again(self, write: Callable[[], Awaitable[T]], ends_at: float) -> T:
        while True:
            await self._clock.sleep(RETRY_S)
            try:
                return await write()
            except DiskFull as error:
                if self._clock.now() >= ends_at:
                    raise DiskFull(
                        f"{error}, then continue with --resume (there was none within {self._deadline_s:g} s)"
                    ) from None
