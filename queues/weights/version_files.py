"""The files of versions in one folder, with locks for writers and readers.

V.weights   the bytes; a process that holds the version has a shared lock on it
V.partial   the bytes while they are written
V.shard_R   the stream of learner rank R, where ranks do not write into V.partial
V.part_R    the manifest of rank R's shard, once it is written
V.manifest  the layout, and the pieces and hashes of each shard; V is complete
V.checked   the state of V.weights when this host last compared all hashes
V.lock      locked by the process that stages or removes the version
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from olmorl.errors import WeightError
from olmorl.messages import Version
from olmorl.private_folder import private_folder
from olmorl.queues.weights.chunks import Extent
from olmorl.queues.weights.pieces import scatter

Kind = Literal["weights", "partial", "manifest", "checked", "lock"]
RankKind = Literal["shard", "part"]
_NAME = re.compile(r"(\d+\.\d+)\.")
_REMOVED = {".manifest": 0, ".lock": 2}
"""The order in which the files of a version are removed; 1 for others."""
_TURN_DEADLINE_S = 60.0
_POLL_S = 0.02


class VersionFiles:
    """A version that a process writes or holds is not removed. The kernel frees the locks of a dead process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_folder(self) -> None:
        """Make the folder for this user alone. Raises ResourceError if another user has taken its name."""
        private_folder(self.folder)

    def path(self, version: Version, kind: Kind) -> Path:
        """The path of a file of a version."""
        return self.folder / f"{version}.{kind}"

    def path_of_rank(self, version: Version, kind: RankKind, rank: int) -> Path:
        """The path of a file of one learner rank."""
        return self.folder / f"{version}.{kind}_{rank}"

    @contextmanager
    def turn(self, version: Version) -> Iterator[None]:
        """Be the only writer of the version on this host.

        Raises:
            WeightError: another process is still writing it; it may succeed, so the caller tries again.
        """
        path, give_up = self.path(version, "lock"), time.monotonic() + _TURN_DEADLINE_S
        while True:
            with path.open("a+b") as lock:
                # A lock without a link belonged to a version that was removed meanwhile.
                if _locked(lock, fcntl.LOCK_EX) and os.fstat(lock.fileno()).st_nlink:
                    lock.truncate(0)
                    lock.write(str(os.getpid()).encode())
                    lock.flush()
                    yield
                    return
            if time.monotonic() >= give_up:
                owner = path.read_text(encoding="ascii", errors="replace")
                held_s = max(0.0, time.time() - path.stat().st_mtime)  # its owner wrote the file when it locked it
                raise WeightError(f"version {version}: process {owner} of this host has staged it for {held_s:.1f} s")
            time.sleep(_POLL_S)

    def write_pieces(
        self, version: Version, num_bytes: int, shards: Iterable[tuple[Sequence[Extent], Iterable[memoryview]]]
    ) -> None:
        """Write streams where their pieces belong in `V.partial`, which has `num_bytes`. An error removes the file.

        Several processes may write their own pieces at the same time.
        """
        partial = self.path(version, "partial")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.truncate(file, num_bytes)
            for pieces, chunks in shards:
                scatter(file, pieces, chunks)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def finish(self, version: Version) -> None:
        """Name the file whose pieces are all written `V.weights`."""
        self.path(version, "partial").rename(self.path(version, "weights"))

    def hold(self, version: Version) -> BinaryIO:
        """Keep the version from being removed until the returned file is closed, or this process ends."""
        held = self.path(version, "weights").open("rb")
        if not _locked(held, fcntl.LOCK_SH):
            held.close()
            raise WeightError(f"version {version} is being discarded")
        return held

    def remove_all_but(self, keep: Collection[Version], newest: Version | None = None) -> None:
        """Remove versions that are not in `keep`, nor staged or held now. Raises OSError after it has tried all.

        Args:
            newest: versions after this one are being written, and stay.
        """
        names = {match[1] for path in self.folder.glob("*.*") if (match := _NAME.match(path.name))}
        failed = None
        for version in map(Version.parse, names):
            if version in keep or (newest is not None and version > newest):
                continue
            try:
                self._remove_unless_used(version)
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
            # A version without its manifest is gone for readers; the lock goes last.
            for path in sorted(self.folder.glob(f"{version}.*"), key=lambda path: _REMOVED.get(path.suffix, 1)):
                path.unlink(missing_ok=True)


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
