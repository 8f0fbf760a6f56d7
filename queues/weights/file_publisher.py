"""Versions published as files: in shared memory of the run's one host, or on a mounted path that every host sees."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

import xxhash

from olmorl.codec import decode, encode
from olmorl.errors import Superseded, WeightError, WeightsDamaged
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import Extent, shard_manifest, whole
from olmorl.queues.weights.deltas import Packer, Published, bases, with_bases
from olmorl.queues.weights.pieces import gather
from olmorl.queues.weights.version_files import VersionFiles, write_whole

log = logging.getLogger(__name__)
DIGEST_BYTES = 16
"""At the end of a manifest, and of `latest`."""


class PublishedFolder:
    """The version that `latest` names is complete. Implements `store.PlaceOfPublication`.

    Args:
        in_place: all ranks write their pieces into one file, which engines map. Otherwise each writes its stream.
    """

    def __init__(self, folder: Path, packer: Packer, in_place: bool) -> None:
        self._files = VersionFiles(folder)
        self._latest = folder / "latest"
        self._packer = packer
        self._in_place = in_place
        self._rank, self._ranks = 0, 1

    def __str__(self) -> str:
        return str(self._files.folder)

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None,
        rank: int,
        ranks: int,
    ) -> None:
        self._rank, self._ranks = rank, ranks
        self._check_newest(version)
        part = self._files.path_of_rank(version, "part", rank)
        if part.exists():
            raise ValueError(f"version {version} exists; a version is never overwritten")
        packing = self._packer.pack(version, buffers, probe)
        self._files.make_folder()
        if self._in_place:
            self._files.write_pieces(version, packing.num_bytes, [(packing.pieces, packing)])
        else:
            _write(self._files.path_of_rank(version, "shard", rank), packing)
        write_whole(part, _sealed(encode(shard_manifest(packing.manifest(), rank))))
        if rank == 0:
            self.complete(version)
        self._packer.keep()

    def complete(self, version: Version) -> list[int]:
        there = {path.name for path in self._files.folder.iterdir()}
        parts = [self._files.path_of_rank(version, "part", rank) for rank in range(self._ranks)]
        if missing := [rank for rank, part in enumerate(parts) if part.name not in there]:
            return missing
        if self._newest() != version:
            manifest = whole([_decoded(part, version) for part in parts])
            if self._in_place:
                self._files.finish(version)
            write_whole(self._files.path(version, "manifest"), _sealed(encode(manifest)))
            self._check_newest(version)  # again: the writes take a while
            write_whole(self._latest, _sealed(str(version).encode()))
        return []

    def _check_newest(self, version: Version) -> None:
        latest = self._newest()
        if latest is not None and latest.incarnation > version.incarnation:
            raise Superseded(f"publish of version {version}: incarnation {latest.incarnation} has published {latest}")

    def latest(self) -> Version | None:
        try:
            return Version.parse(_unsealed(self._latest.read_bytes()).decode())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise WeightsDamaged(f"{self._latest} is damaged: {error}; the next version writes it again") from None

    def _newest(self) -> Version | None:
        """As `latest`; None if the file is damaged, so that the next version can replace it."""
        try:
            return self.latest()
        except WeightsDamaged as error:
            log.warning("%s", error)
            return None

    def open(self, version: Version) -> Published:
        manifest = self._manifest(version)
        shards = [self._chunks(manifest, rank) for rank in range(len(manifest.shards))]
        for chunks in shards:
            next(chunks)  # opens the file: the version may be discarded while it is read
        return Published(manifest, shards)

    def _chunks(self, manifest: WeightsReady, rank: int) -> Iterator[memoryview]:
        """Nothing, once the file is open; then the chunks. The file is closed with the iterator."""
        version, shard = manifest.version, manifest.shards[rank]
        if self._in_place:
            return _read_pieces(self._files.path(version, "weights"), shard.pieces, manifest)
        sizes = shard.delta.sizes if shard.delta else repeat(manifest.chunk_bytes)
        return _read(self._files.path_of_rank(version, "shard", rank), sizes)

    def _manifest(self, version: Version) -> WeightsReady:
        try:
            return _decoded(self._files.path(version, "manifest"), version)
        except FileNotFoundError:
            raise WeightError(f"version {version} is not in {self}: never published, or discarded") from None

    def discard(self, keep: Iterable[Version]) -> None:
        latest, kept = self._newest(), set(keep)
        if self._rank or latest is None:
            return  # rank 0 does it for all
        if kept and latest.incarnation > max(kept).incarnation:
            return  # the files belong to a newer start, which may be writing the next version
        self._files.remove_all_but(with_bases({*kept, latest}, self._bases_of), latest)

    def _bases_of(self, version: Version) -> Iterable[Version]:
        try:
            return bases(self._manifest(version))
        except WeightError:
            return ()  # its readers get the error

    def sweep(self) -> None:
        self._files.remove_all()


def _decoded(path: Path, version: Version) -> WeightsReady:
    data = path.read_bytes()
    try:
        manifest: WeightsReady = decode(_unsealed(data), WeightsReady)
    except ValueError as error:
        raise WeightsDamaged(f"version {version}: {path} is damaged: {error}") from None
    return manifest


def _sealed(data: bytes) -> bytes:
    return data + xxhash.xxh3_128_digest(data)


def _unsealed(data: bytes) -> bytes:
    """Raises ValueError unless these are the bytes that were sealed."""
    content = data[:-DIGEST_BYTES]
    if xxhash.xxh3_128_digest(content) != data[-DIGEST_BYTES:]:
        raise ValueError("its bytes are not those that were written")
    return content


def _write(path: Path, chunks: Iterable[memoryview]) -> None:
    """Write a file whole, or leave nothing."""
    partial = path.with_name(f"{path.name}_partial")
    try:
        with partial.open("wb") as target:
            for chunk in chunks:
                target.write(chunk)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path, sizes: Iterable[int]) -> Iterator[memoryview]:
    """A file in chunks; each is valid until the next one."""
    buffer = memoryview(bytearray())
    with path.open("rb") as source:
        yield buffer
        for size in sizes:
            if len(buffer) < size:
                buffer = memoryview(bytearray(size))
            if not (count := source.readinto(buffer[:size])):
                return
            yield buffer[:count]


def _read_pieces(path: Path, pieces: Sequence[Extent], manifest: WeightsReady) -> Iterator[memoryview]:
    """A stream from the weight file in chunks; each is valid until the next one."""
    with path.open("rb") as source:
        if (size := path.stat().st_size) != manifest.num_bytes:
            raise WeightsDamaged(f"version {manifest.version}: {path} has {size} bytes of {manifest.num_bytes}")
        yield memoryview(b"")
        yield from gather(source.fileno(), pieces, manifest.chunk_bytes)
