"""The versions in the shared memory of a host, fetched once for all engines of the host."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from olmorl.errors import WeightError
from olmorl.messages import Version, WeightsReady
from olmorl.ports import StagedWeights
from olmorl.queues.weights.chunks import checked
from olmorl.queues.weights.version_files import VersionFiles, write_whole

SHARED_MEMORY = Path("/dev/shm")


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
        self._let_go()
        self._held = held
        if not self._in_place:
            self._files.remove_all_but([version])
        return StagedWeights(manifest, self._files.path(version, "weights"))

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

    def sweep(self) -> None:
        """Remove everything of the run from this host."""
        self._let_go()
        self._files.remove_all()

    def _let_go(self) -> None:
        """Another process may remove the version that this process fetched last."""
        if self._held is not None:
            self._held.close()
            self._held = None

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
