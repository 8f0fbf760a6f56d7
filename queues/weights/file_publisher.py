"""Versions published as files: in shared memory of the run's one host, or on a mounted path that every host sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

from olmorl.codec import decode, encode
from olmorl.errors import Superseded, WeightError
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.deltas import Packer, Published, with_bases
from olmorl.queues.weights.version_files import VersionFiles, write_whole


class PublishedFolder:
    """The version that `latest` names is complete. Implements `store.Published`."""

    def __init__(self, folder: Path, packer: Packer) -> None:
        self._files = VersionFiles(folder)
        self._latest = folder / "latest"
        self._packer = packer

    def __str__(self) -> str:
        return str(self._files.folder)

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady:
        self._check_newest(version)
        path = self._files.path(version, "manifest")
        if path.exists():
            raise ValueError(f"version {version} exists; a version is never overwritten")
        self._files.folder.mkdir(parents=True, exist_ok=True)
        packing = self._packer.pack(version, buffers, probe)
        with self._files.turn(version):
            self._files.write(version, packing)
            manifest = packing.manifest()
            write_whole(path, encode(manifest))
            self._check_newest(version)  # again: the write takes a while
            write_whole(self._latest, str(version).encode())
        self._packer.keep()
        return manifest

    def _check_newest(self, version: Version) -> None:
        latest = self.latest()
        if latest is not None and latest.incarnation > version.incarnation:
            raise Superseded(f"publish of version {version}: incarnation {latest.incarnation} has published {latest}")

    def latest(self) -> Version | None:
        try:
            return Version.parse(self._latest.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def open(self, version: Version) -> Published:
        manifest = self._manifest(version)
        sizes = manifest.delta.sizes if manifest.delta else repeat(manifest.chunk_bytes)
        return Published(manifest, _read(self._files.path(version, "weights"), sizes))

    def _manifest(self, version: Version) -> WeightsReady:
        path = self._files.path(version, "manifest")
        try:
            manifest: WeightsReady = decode(path.read_bytes(), WeightsReady)
        except FileNotFoundError:
            raise WeightError(f"version {version} is not in {self}: never published, or discarded") from None
        except ValueError as error:
            raise WeightError(f"version {version}: {path} is damaged: {error}") from None
        return manifest

    def discard(self, keep: Iterable[Version]) -> None:
        latest, kept = self.latest(), set(keep)
        if kept and latest is not None and latest.incarnation > max(kept).incarnation:
            return  # the files belong to a newer start, which may be writing the next version
        self._files.remove_all_but(with_bases({*kept, *filter(None, [latest])}, self._base_of))

    def _base_of(self, version: Version) -> Version | None:
        try:
            delta = self._manifest(version).delta
        except WeightError:
            return None  # whoever reads it is told
        return delta.base if delta else None

    def sweep(self) -> None:
        self._files.remove_all()


def _read(path: Path, sizes: Iterable[int]) -> Iterator[memoryview]:
    """A file in chunks; each is valid until the next one."""
    buffer = memoryview(bytearray())
    with path.open("rb") as source:
        for size in sizes:
            if len(buffer) < size:
                buffer = memoryview(bytearray(size))
            if not (count := source.readinto(buffer[:size])):
                return
            yield buffer[:count]
