"""Bytes that survive a crash: files that are whole or absent, and append-only files with at most a torn tail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from olmorl.errors import ResourceError


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file that after a crash is there in full or not at all.

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
        partial.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` and make it durable. Raises OSError, perhaps after a part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    sync(descriptor)


def sync(descriptor: int) -> None:
    """Every durable byte of the run directory passes here before anything depends on it."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut(path: Path, num_bytes: int) -> bytes:
    """Shorten a file to `num_bytes`, durably; returns what was cut off."""
    with path.open("r+b") as file:
        file.seek(num_bytes)
        tail = file.read()
        if tail:
            file.truncate(num_bytes)
            sync(file.fileno())
    return tail


def whole_lines(data: bytes) -> int:
    """Bytes up to and including the last line end: what follows is a line torn by a crash."""
    return data.rfind(b"\n") + 1


def unwritable(path: Path, error: OSError) -> ResourceError:
    """The error a person sees when the run directory cannot be written."""
    return ResourceError(
        f"{path}: {error.strerror or error}; make room or mend the folder, then continue with --resume"
    )
