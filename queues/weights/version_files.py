"""The files of versions in one folder, with locks for writers and readers.

V.weights   the bytes; a process that holds the version has a shared lock on it
V.partial   the bytes while they are written
V.manifest  the layout and the hash of each chunk
V.checked   the state of V.weights when this host last compared all hashes
V.lock      locked by the process that writes or removes the version
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from olmorl.errors import WeightError
from olmorl.messages import Version

Kind = Literal["weights", "partial", "manifest", "checked", "lock"]
_NAME = re.compile(r"(\d+\.\d+)\.\w+")
_TURN_DEADLINE_S = 60.0
_POLL_S = 0.02


class VersionFiles:
    """A version that a process writes or holds is not removed. The kernel frees the locks of a dead process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: Version, kind: Kind) -> Path:
        """The path of a file of a version."""
        return self.folder / f"{version}.{kind}"

    @contextmanager
    def turn(self, version: Version) -> Iterator[None]:
        """Be the only writer of the version on this host.

        Raises:
            WeightError: another process is still writing it; it may succeed, so the caller tries again.
        """
        path, give_up = self.path(version, "lock"), time.monotonic() + _TURN_DEADLINE_S
        while time.monotonic() < give_up:
            with path.open("a+b") as lock:
                # A lock without a link belonged to a version that was removed meanwhile.
                if _locked(lock, fcntl.LOCK_EX) and os.fstat(lock.fileno()).st_nlink:
                    lock.truncate(0)
                    lock.write(str(os.getpid()).encode())
                    lock.flush()
                    yield
                    return
            time.sleep(_POLL_S)
        owner = path.read_text(encoding="ascii", errors="replace")
        raise WeightError(f"version {version}: process {owner} of this host has staged it for {_TURN_DEADLINE_S:g} s")

    def write(self, version: Version, chunks: Iterable[memoryview]) -> None:
        """Write the weights whole, or leave nothing."""
        partial = self.path(version, "partial")
        try:
            with partial.open("wb") as target:
                for chunk in chunks:
                    target.write(chunk)
            partial.rename(self.path(version, "weights"))
        finally:
            partial.unlink(missing_ok=True)

    def hold(self, version: Version) -> BinaryIO:
        """Keep the version from being removed until the returned file is closed, or this process ends."""
        held = self.path(version, "weights").open("rb")
        if not _locked(held, fcntl.LOCK_SH):
            held.close()
            raise WeightError(f"version {version} is being discarded")
        return held

    def remove_all_but(self, keep: Iterable[Version]) -> None:
        """Remove versions that are not in `keep`, nor written or held now. Raises OSError after it has tried all."""
        kept = {str(version) for version in keep}
        found = {match[1] for path in self.folder.glob("*.*") if (match := _NAME.fullmatch(path.name))}
        failed = None
        for name in found - kept:
            try:
                self._remove_unless_used(Version.parse(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = error
        if failed:
            raise failed

    def remove_all(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_unless_used(self, version: Version) -> None:
        weights = self.path(version, "weights")
        with self.path(version, "lock").open("ab") as lock:
            if not _locked(lock, fcntl.LOCK_EX) or (weights.exists() and _is_held(weights)):
                return
            kinds: tuple[Kind, ...] = ("manifest", "checked", "partial", "weights", "lock")
            for kind in kinds:
                self.path(version, kind).unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file in one step, or leave it as it was; also where the power fails."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_held(path: Path) -> bool:
    with path.open("r+b") as file:  # NFS gives exclusive locks only on writable files
        return not _locked(file, fcntl.LOCK_EX)


def _locked(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
