"""Weights as files: in shared memory of one host, or on a mounted path that every host stages once."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from olmorl.clock import Clock, SystemClock
from olmorl.codec import decode, encode
from olmorl.errors import Superseded, WeightError
from olmorl.messages import Buffer, Version, WeightsReady
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.chunks import ChunkHashes, read_checked

SHARED_MEMORY = Path("/dev/shm")
CHUNK_BYTES = 16 * 2**20
_ALIGNMENT = 64
_STAGE_DEADLINE_S = 1800.0
_WEIGHTS, _MANIFEST, _CHECKED, _LOCK = ".weights", ".manifest", ".checked", ".lock"


class FileWeightStore:
    """What `latest` names is complete, and a version that someone here has fetched last is not removed under them.

    Args:
        run: name of the run; also of its folders.
        directory: where versions are published; default: shared memory. On any other path a fetch copies the version
            into shared memory of its own host, once for all who fetch it there.
        chunk_bytes: bytes a hash.
        shared_memory: the host's memory file system.
        clock: gives `published_at`.
    """

    def __init__(
        self,
        run: str,
        directory: Path | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        shared_memory: Path = SHARED_MEMORY,
        clock: Clock | None = None,
    ) -> None:
        self._staged = shared_memory / f"olmorl-{run}"
        in_place = directory is None or directory.resolve().is_relative_to(shared_memory)
        self._published = (directory or shared_memory) / f"olmorl-{run}"
        self._here = self._published if in_place else self._staged
        self._chunk_bytes = chunk_bytes
        self._clock = clock or SystemClock()
        self._in_use: BinaryIO | None = None

    def publish(self, version: Version, buffers: Iterable[NamedBuffer]) -> WeightsReady:
        latest = self.latest()
        if latest is not None and latest.incarnation > version.incarnation:
            raise Superseded(f"publish of version {version}: incarnation {latest.incarnation} has published {latest}")
        self._published.mkdir(parents=True, exist_ok=True)
        if self._file(self._published, version, _MANIFEST).exists():
            raise ValueError(f"version {version} exists; a version is never overwritten")
        with _explained(version, self._published):
            manifest = self._write(version, buffers)
            _write_whole(self._file(self._published, version, _MANIFEST), encode(manifest))
            _write_whole(self._published / "latest", str(version).encode())
        return manifest

    def latest(self) -> Version | None:
        try:
            return Version.parse((self._published / "latest").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def fetch(self, version: Version) -> StagedWeights:
        manifest = self._manifest(version)
        path = self._file(self._here, version, _WEIGHTS)
        self._here.mkdir(parents=True, exist_ok=True)
        with _explained(version, self._here), self._one_on_this_host(version):
            if not self._is_checked(version):
                self._check(manifest) if self._here == self._published else self._stage(manifest)
            self._hold(path, version)
        if self._here != self._published:
            self._remove_all_but({version}, self._here)
        return StagedWeights(manifest, path)

    def discard(self, keep: Iterable[Version]) -> None:
        kept = {*keep, *filter(None, [self.latest()])}
        for folder in {self._published, self._here}:
            self._remove_all_but(kept, folder)

    def sweep(self) -> None:
        self._release()
        for folder in {self._published, self._staged}:
            shutil.rmtree(folder, ignore_errors=True)

    # --- publishing

    def _write(self, version: Version, buffers: Iterable[NamedBuffer]) -> WeightsReady:
        path = self._file(self._published, version, _WEIGHTS)
        partial = path.with_suffix(".partial")
        hashes, layout, offset = ChunkHashes(self._chunk_bytes), list[Buffer](), 0
        with partial.open("wb") as target:
            for name, dtype, shape, data in buffers:
                padding = bytes(-offset % _ALIGNMENT)
                content = data.cast("B")
                for part in (memoryview(padding), content):
                    target.write(part)
                    hashes.update(part)
                layout.append(Buffer(name, dtype, tuple(shape), offset + len(padding), len(content)))
                offset += len(padding) + len(content)
        partial.rename(path)
        return WeightsReady(
            version=version,
            buffers=tuple(layout),
            num_bytes=offset,
            chunk_bytes=self._chunk_bytes,
            chunk_hashes=hashes.finish(),
            published_at=self._clock.wall(),
        )

    # --- fetching

    def _manifest(self, version: Version) -> WeightsReady:
        path = self._file(self._published, version, _MANIFEST)
        try:
            manifest: WeightsReady = decode(path.read_bytes(), WeightsReady)
        except FileNotFoundError:
            raise WeightError(f"version {version} is not in {self._published}: never published, or discarded") from None
        except ValueError as error:
            raise WeightError(f"version {version}: {path} is damaged: {error}") from None
        return manifest

    def _check(self, manifest: WeightsReady) -> None:
        path = self._file(self._here, manifest.version, _WEIGHTS)
        with path.open("rb") as source:
            for _ in read_checked(source, manifest, path):
                pass
        self._mark_checked(manifest.version)

    def _stage(self, manifest: WeightsReady) -> None:
        origin = self._file(self._published, manifest.version, _WEIGHTS)
        path = self._file(self._here, manifest.version, _WEIGHTS)
        partial = path.with_suffix(".partial")
        with origin.open("rb") as source, partial.open("wb") as target:
            for chunk in read_checked(source, manifest, origin):
                target.write(chunk)
        partial.rename(path)
        self._mark_checked(manifest.version)

    def _mark_checked(self, version: Version) -> None:
        signature = _signature(self._file(self._here, version, _WEIGHTS))
        _write_whole(self._file(self._here, version, _CHECKED), signature.encode())

    def _is_checked(self, version: Version) -> bool:
        """Whether this host has compared all hashes since the file was last written."""
        try:
            checked = self._file(self._here, version, _CHECKED).read_text(encoding="ascii")
            return checked == _signature(self._file(self._here, version, _WEIGHTS))
        except FileNotFoundError:
            return False

    @contextmanager
    def _one_on_this_host(self, version: Version) -> Iterator[None]:
        with self._file(self._here, version, _LOCK).open("wb") as lock:
            give_up = time.monotonic() + _STAGE_DEADLINE_S
            while not _locked(lock, fcntl.LOCK_EX):
                if time.monotonic() > give_up:
                    raise WeightError(
                        f"version {version}: another process of this host has been staging it for too long"
                    )
                time.sleep(0.02)
            yield

    def _hold(self, path: Path, version: Version) -> None:
        # The kernel frees a shared lock with its process, so a version in use never outlives its user.
        held = path.open("rb")
        if not _locked(held, fcntl.LOCK_SH):
            held.close()
            raise WeightError(f"version {version} is being discarded")
        self._release()
        self._in_use = held

    def _release(self) -> None:
        if self._in_use is not None:
            self._in_use.close()
            self._in_use = None

    # --- freeing

    def _remove_all_but(self, keep: set[Version], folder: Path) -> None:
        names = {str(version) for version in keep}
        for path in folder.glob(f"*{_WEIGHTS}"):
            name = path.name.removesuffix(_WEIGHTS)
            if name not in names:
                _remove_unless_used(path)

    @staticmethod
    def _file(folder: Path, version: Version, kind: str) -> Path:
        return folder / f"{version}{kind}"


def _remove_unless_used(path: Path) -> None:
    with suppress(FileNotFoundError), path.open("rb") as weights:
        if _locked(weights, fcntl.LOCK_EX):
            for kind in (_MANIFEST, _CHECKED, _LOCK, _WEIGHTS):
                path.with_name(path.name.removesuffix(_WEIGHTS) + kind).unlink(missing_ok=True)


def _locked(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signature(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)


@contextmanager
def _explained(version: Version, folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise WeightError(f"version {version}: {error.filename} is gone: discarded meanwhile") from error
    except OSError as error:
        raise WeightError(f"version {version}: {error.strerror} in {folder}; make room there") from error
