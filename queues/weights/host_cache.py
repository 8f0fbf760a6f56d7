"""The versions in the shared memory of a host, fetched once for all engines of the host."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from olmorl.errors import WeightError, WeightsDamaged
from olmorl.messages import Version, WeightsReady
from olmorl.ports import StagedWeights
from olmorl.queues.weights.chunks import check, checked, sizes
from olmorl.queues.weights.pieces import scatter, within
from olmorl.queues.weights.version_files import VersionFiles, write_whole

SHARED_MEMORY = Path("/dev/shm")
TakeChunk = Callable[[int, int, memoryview], None]
"""Takes a chunk: the rank of its shard, its number there, and its bytes, which are valid during the call."""


class HostCache:
    """A version is checked once for the whole host, and stays until the last process that fetched it ends.

    Args:
        folder: in the host's shared memory, with the name of the run.
        in_place: versions are published into this very folder; then nothing is copied, and nothing removed.
    """

    def __init__(self, folder: Path, in_place: bool) -> None:
        self._files = VersionFiles(folder)
        self._in_place = in_place
        self._held: BinaryIO | None = None

    def __str__(self) -> str:
        return str(self._files.folder)

    def fetch(self, manifest: WeightsReady, shards: Sequence[Iterable[memoryview]]) -> StagedWeights:
        """Have the version here, made of the chunks of its shards unless another process of the host has brought it."""
        version = manifest.version
        self._files.make_folder()
        with self._files.turn(version):
            if not self.has(version):
                self._bring(manifest, shards)
            held = self._files.hold(version)
        self.release()
        self._held = held
        if not self._in_place:
            self._files.remove_all_but([version])
        return StagedWeights(manifest, self._files.path(version, "weights"))

    def receive(self, manifest: WeightsReady, transfer: Callable[[TakeChunk], None]) -> None:
        """Have the version here, made of the chunks that `transfer` passes on in any order.

        A chunk that is damaged or finds no room does not interrupt `transfer`: other hosts take part in it.

        `transfer` is not called if the version is here.

        Raises:
            WeightError: another process is staging the version now; `transfer` was not called.
            WeightsDamaged: a chunk differs from the published one, or is missing.
            OSError: there is no room.
        """
        version = manifest.version
        self._files.make_folder()
        with self._files.turn(version, wait_s=0):
            if self.has(version):
                return
            with self._files.partial(version, manifest.num_bytes) as file:
                arrivals = _Arrivals(manifest, file)
                transfer(arrivals.take)
                arrivals.check()
            self._files.finish(version)
            self._note_checked(version)
        self._files.remove_all_but([version])

    def open(self, version: Version) -> BinaryIO | None:
        """The bytes of a version that is here and was checked; nothing removes them before the file is closed."""
        try:
            held = self._files.hold(version)
        except (FileNotFoundError, WeightError):
            return None
        if not self.has(version):
            held.close()
            return None
        return held

    def release(self) -> None:
        """Let go of the version that this process fetched last: another process may remove it."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def sweep(self) -> None:
        """Remove everything of the run from this host."""
        self.release()
        self._files.remove_all()

    def _bring(self, manifest: WeightsReady, shards: Sequence[Iterable[memoryview]]) -> None:
        version, ranks = manifest.version, list(range(len(shards)))
        random.shuffle(ranks)  # so that not all hosts pull from the same host of the learner at the same time
        found = [(manifest.shards[rank].pieces, checked(shards[rank], manifest, rank)) for rank in ranks]
        if self._in_place:
            for _, chunks in found:
                for _ in chunks:
                    pass
        else:
            self._files.write_pieces(version, manifest.num_bytes, found)
            self._files.finish(version)
        self._note_checked(version)

    def _note_checked(self, version: Version) -> None:
        write_whole(self._files.path(version, "checked"), self._signature(version).encode())

    def has(self, version: Version) -> bool:
        """Whether the version is here, and all its hashes were compared since the file was last written."""
        try:
            checked = self._files.path(version, "checked").read_text(encoding="ascii")
            return checked == self._signature(version)
        except FileNotFoundError:
            return False

    def _signature(self, version: Version) -> str:
        status = self._files.path(version, "weights").stat()
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


class _Arrivals:
    """The chunks of a version, written where they belong. The first one that fails is told at the end."""

    def __init__(self, manifest: WeightsReady, file: int) -> None:
        self._manifest = manifest
        self._file = file
        self._missing = {
            (rank, number)
            for rank, shard in enumerate(manifest.shards)
            for number in range(len(sizes(shard, manifest.chunk_bytes)))
        }
        self._error: WeightError | OSError | None = None

    def take(self, rank: int, number: int, chunk: memoryview) -> None:
        """Check a chunk and write it; nothing after an error."""
        if self._error is not None:
            return
        try:
            check(chunk, self._manifest, rank, number)
            start = number * self._manifest.chunk_bytes
            scatter(self._file, within(self._manifest.shards[rank].pieces, start, len(chunk)), [chunk])
        except (WeightError, OSError) as error:
            self._error = error
        self._missing.discard((rank, number))

    def check(self) -> None:
        """Raise the first error, or WeightsDamaged for a chunk that did not come."""
        if self._error is not None:
            raise self._error
        if self._missing:
            rank, number = min(self._missing)
            raise WeightsDamaged(
                f"version {self._manifest.version}: {len(self._missing)} chunks did not come, the first is chunk "
                f"{number} of rank {rank}; the version is not applied"
            )
