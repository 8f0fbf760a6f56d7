"""Versions published as files: in shared memory of the run's one host, or on a mounted path that every host sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from olmorl.codec import decode, encode
from olmorl.errors import Superseded, WeightError
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import Packing
from olmorl.queues.weights.version_files import VersionFiles, write_whole


class PublishedFolder:
    """The version that `latest` names is complete. Implements `store.Published`."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        self._files = VersionFiles(folder)
        self._latest = folder / "latest"
        self._chunk_bytes = chunk_bytes

    def __str__(self) -> str:
        return str(self._files.folder)

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady:
        self._check_newest(version)
        path = self._files.path(version, "manifest")
        if path.exists():
            raise ValueError(f"version {version} exists; a version is never overwritten")
        self._files.folder.mkdir(parents=True, exist_ok=True)
        packing = Packing(version, buffers, self._chunk_bytes, probe)
        with self._files.turn(version):
            self._files.write(version, packing)
            manifest = packing.manifest()
            write_whole(path, encode(manifest))
            self._check_newest(version)  # again: the write takes a while
            write_whole(self._latest, str(version).encode())
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

    def open(self, version: Version) -> tuple[WeightsReady, Iterator[memoryview]]:
        path = self._files.path(version, "manifest")
        try:
            manifest: WeightsReady = decode(path.read_bytes(), WeightsReady)
        except FileNotFoundError:
            raise WeightError(f"version {version} is not in {self}: never published, or discarded") from None
        except ValueError as error:
            raise WeightError(f"version {version}: {path} is damaged: {error}") from None
        return manifest, _read(self._files.path(version, "weights"), manifest.chunk_bytes)

    def discard(self, keep: Iterable[Version]) -> None:
        latest, kept = self.latest(), set(keep)
        if kept and latest is not None and latest.incarnation > max(kept).incarnation:
            return  # the files belong to a newer start, which may be writing the next version
        self._files.remove_all_but({*kept, *filter(None, [latest])})

    def sweep(self) -> None:
        self._files.remove_all()


def _read(path: Path, chunk_bytes: int) -> Iterator[memoryview]:
    """A file in chunks; each is valid until the next one."""
    buffer = memoryview(bytearray(chunk_bytes))
    with path.open("rb") as source:
        while count := source.readinto(buffer):
            yield buffer[:count]
