"""A weight store without bytes, for simulation: versions appear and disappear as in a real store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olmorl.errors import Superseded, WeightError
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.chunks import CHUNK_BYTES, Packing, shard_manifest, whole


class MemoryWeightStore:
    """Keeps manifests only, for all ranks of one process; `StagedWeights.path` names no file."""

    def __init__(self) -> None:
        self._parts: dict[Version, dict[int, WeightsReady]] = {}
        """The manifests of the shards by rank."""
        self._ranks = 1
        self._latest: Version | None = None

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._check_newest(version)
        parts = self._parts.setdefault(version, {})
        if rank in parts:
            raise ValueError(f"version {version} exists; a version is never overwritten")
        packing = Packing(version, list(buffers), CHUNK_BYTES, probe)
        parts[rank] = shard_manifest(packing.manifest(), rank)
        self._ranks = ranks
        if rank == 0:
            self.complete(version)

    def complete(self, version: Version) -> list[int]:
        self._check_newest(version)
        missing = [rank for rank in range(self._ranks) if rank not in self._parts[version]]
        if not missing:
            self._latest = version
        return missing

    def _check_newest(self, version: Version) -> None:
        if self._latest is not None and self._latest.incarnation > version.incarnation:
            raise Superseded(f"publish of version {version}: incarnation {self._latest.incarnation} has published")

    def latest(self) -> Version | None:
        return self._latest

    def fetch(self, version: Version) -> StagedWeights:
        if len(parts := self._parts.get(version, {})) < self._ranks:
            raise WeightError(f"version {version} was never published, or is discarded")
        return StagedWeights(whole([parts[rank] for rank in range(self._ranks)]), Path(f"memory/{version}"))

    def discard(self, keep: Iterable[Version]) -> None:
        latest = self._latest
        if latest is not None:
            kept = {*keep, latest}
            self._parts = {one: parts for one, parts in self._parts.items() if one in kept or one > latest}

    def sweep(self) -> None:
        self._parts.clear()
        self._latest = None
