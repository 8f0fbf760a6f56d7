"""The weight store: each learner rank publishes its shard of a version, and each host fetches the version once.

file_publisher   files, in shared memory of one host or on a path that all hosts see
ray_publisher    Ray's object store, for hosts that share no storage
host_cache       the versions in the shared memory of each host
chunks, pieces   the shard of a learner rank: a stream of chunks, and where its bytes belong
deltas           shards as their changes since the version before
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Protocol

from olmorl import disk_space
from olmorl.errors import WeightError, WeightsDamaged
from olmorl.messages import Probe, Version
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.chunks import CHUNK_BYTES
from olmorl.queues.weights.deltas import Packer, Published, bases, restored
from olmorl.queues.weights.file_publisher import PublishedFolder
from olmorl.queues.weights.host_cache import SHARED_MEMORY, HostCache
from olmorl.queues.weights.pieces import gather

_log = logging.getLogger(__name__)


class PlaceOfPublication(Protocol):
    """Where versions are published. Its text form names the place in messages."""

    def publish(
        self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None, rank: int, ranks: int
    ) -> None: ...

    def complete(self, version: Version) -> list[int]: ...

    def latest(self) -> Version | None: ...

    def open(self, version: Version) -> Published:
        """No bytes are moved before the first chunk is read."""
        ...

    def discard(self, keep: Iterable[Version]) -> None: ...

    def sweep(self) -> None: ...


class StagedWeightStore:
    """Each host fetches a version once, and waits for no other host. Implements `WeightStore`."""

    def __init__(self, published: PlaceOfPublication, stage: HostCache) -> None:
        self._published = published
        self._stage = stage

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        with _explained(f"version {version}", str(self._published)):
            self._published.publish(version, buffers, probe, rank, ranks)

    def complete(self, version: Version) -> list[int]:
        with _explained(f"version {version}", str(self._published)):
            return self._published.complete(version)

    def latest(self) -> Version | None:
        with _explained("the latest version", str(self._published)):
            return self._published.latest()

    def fetch(self, version: Version) -> StagedWeights:
        with _explained(f"version {version}", str(self._stage)):
            found = self._published.open(version)
            try:
                return self._stage.fetch(found.manifest, self._shards(found, from_here=True))
            except WeightsDamaged:
                if not bases(found.manifest):
                    raise
            # The version that is staged here may be what is damaged.
            found = self._published.open(version)
            staged = self._stage.fetch(found.manifest, self._shards(found, from_here=False))
            _log.warning(
                "version %s was built from the last whole one: a version in %s is damaged", version, self._stage
            )
            return staged

    def _shards(self, found: Published, from_here: bool) -> list[Iterator[memoryview]]:
        """The whole chunks of each shard, from the nearest version on this host, or else from one published whole."""
        opened: dict[Version, Published] = {}
        return [self._whole(found, rank, opened, from_here) for rank in range(len(found.manifest.shards))]

    def _whole(
        self, found: Published, rank: int, opened: dict[Version, Published], from_here: bool
    ) -> Iterator[memoryview]:
        """The whole chunks of one shard. `opened` has the versions that other shards have opened."""
        manifest, chain = found.manifest, [found]
        while (delta := chain[-1].manifest.shards[rank].delta) is not None:
            if from_here and (base := self._stage.open(delta.base)) is not None:
                with base:
                    chunks = gather(base.fileno(), manifest.shards[rank].pieces, manifest.chunk_bytes)
                    yield from restored(manifest.version, [one.shards[rank] for one in chain], _copies(chunks))
                return
            if delta.base not in opened:
                opened[delta.base] = self._published.open(delta.base)
            chain.append(opened[delta.base])
        *changes, full = [one.shards[rank] for one in chain]
        yield from restored(manifest.version, changes, _copies(full)) if changes else full

    def discard(self, keep: Iterable[Version]) -> None:
        with _explained("discarding versions", str(self._published)):
            self._published.discard(keep)

    def sweep(self) -> None:
        self._published.sweep()
        self._stage.sweep()


def _copies(chunks: Iterable[memoryview]) -> Iterator[memoryview]:
    """Chunks that stay valid."""
    for chunk in chunks:
        yield memoryview(bytes(chunk))


def store_in_files(
    run: str,
    directory: Path | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    shared_memory: Path = SHARED_MEMORY,
    full_every: int = 1,
) -> StagedWeightStore:
    """Publish into `directory`, which all hosts see; default: the shared memory of the run's one host.

    `full_every`: see `Packer`. In shared memory all versions are whole: engines map the very files.
    """
    in_place = directory is None or directory.resolve().is_relative_to(shared_memory)
    published = (directory or shared_memory) / f"olmorl-{run}"
    stage = HostCache(published if in_place else shared_memory / f"olmorl-{run}", in_place)
    packer = Packer(chunk_bytes, 1 if in_place else full_every)
    return StagedWeightStore(PublishedFolder(published, packer, in_place), stage)


def store_in_ray(
    run: str,
    chunk_bytes: int = CHUNK_BYTES,
    shared_memory: Path = SHARED_MEMORY,
    full_every: int = 1,
) -> StagedWeightStore:
    """Publish into Ray's object store; the process must be part of a Ray cluster whenever it publishes or fetches."""
    from olmorl.queues.weights.ray_publisher import PublishedObjects

    stage = HostCache(shared_memory / f"olmorl-{run}", in_place=False)
    return StagedWeightStore(PublishedObjects(run, Packer(chunk_bytes, full_every)), stage)


@contextmanager
def _explained(what: str, place: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise WeightError(f"{what}: {error.filename} is gone: discarded meanwhile") from error
    except OSError as error:
        where = error.filename or place
        fix = f": {disk_space.full(Path(where).parent)}; make room there" if error.errno in (ENOSPC, EDQUOT) else ""
        raise WeightError(f"{what}: {error.strerror} in {where}{fix}") from error
