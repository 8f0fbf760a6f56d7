"""The weight store: the learner publishes a version in one place, and each host fetches it once.

file_publisher   files, in shared memory of one host or on a path that all hosts see
ray_publisher    Ray's object store, for hosts that share no storage
host_cache       the versions in the shared memory of each host
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Protocol

from olmorl import disk_space
from olmorl.errors import WeightError
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.chunks import CHUNK_BYTES
from olmorl.queues.weights.file_publisher import PublishedFolder
from olmorl.queues.weights.host_cache import SHARED_MEMORY, HostCache


class Published(Protocol):
    """A place where versions are published. Its text form names the place in messages."""

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady: ...

    def latest(self) -> Version | None: ...

    def open(self, version: Version) -> tuple[WeightsReady, Iterator[memoryview]]:
        """The manifest, and an iterator of unchecked chunks; no bytes are moved before the first chunk is read."""
        ...

    def discard(self, keep: Iterable[Version]) -> None: ...

    def sweep(self) -> None: ...


class StagedWeightStore:
    """Each host fetches a version once, and waits for no other host. Implements `WeightStore`."""

    def __init__(self, published: Published, stage: HostCache) -> None:
        self._published = published
        self._stage = stage

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady:
        with _explained(f"version {version}", str(self._published)):
            return self._published.publish(version, buffers, probe)

    def latest(self) -> Version | None:
        with _explained("the latest version", str(self._published)):
            return self._published.latest()

    def fetch(self, version: Version) -> StagedWeights:
        with _explained(f"version {version}", str(self._stage)):
            return self._stage.fetch(*self._published.open(version))

    def discard(self, keep: Iterable[Version]) -> None:
        with _explained("discarding versions", str(self._published)):
            self._published.discard(keep)

    def sweep(self) -> None:
        self._published.sweep()
        self._stage.sweep()


def store_in_files(
    run: str,
    directory: Path | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    shared_memory: Path = SHARED_MEMORY,
) -> StagedWeightStore:
    """Publish into `directory`, which all hosts see; default: the shared memory of the run's one host."""
    in_place = directory is None or directory.resolve().is_relative_to(shared_memory)
    published = (directory or shared_memory) / f"olmorl-{run}"
    stage = HostCache(published if in_place else shared_memory / f"olmorl-{run}", in_place)
    return StagedWeightStore(PublishedFolder(published, chunk_bytes), stage)


def store_in_ray(
    run: str,
    chunk_bytes: int = CHUNK_BYTES,
    shared_memory: Path = SHARED_MEMORY,
) -> StagedWeightStore:
    """Publish into Ray's object store; the process must be part of a Ray cluster whenever it publishes or fetches."""
    from olmorl.queues.weights.ray_publisher import PublishedObjects

    stage = HostCache(shared_memory / f"olmorl-{run}", in_place=False)
    return StagedWeightStore(PublishedObjects(run, chunk_bytes), stage)


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
