"""A weight store without bytes, for simulation: versions appear and disappear as in a real store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olmorl.errors import Superseded, WeightError
from olmorl.messages import Buffer, Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer, StagedWeights


class MemoryWeightStore:
    """Keeps manifests only; `StagedWeights.path` names no file."""

    def __init__(self) -> None:
        self._manifests: dict[Version, WeightsReady] = {}
        self._latest: Version | None = None

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady:
        if self._latest is not None and self._latest.incarnation > version.incarnation:
            raise Superseded(f"publish of version {version}: incarnation {self._latest.incarnation} has published")
        if version in self._manifests:
            raise ValueError(f"version {version} exists; a version is never overwritten")
        layout, offset = [], 0
        for name, dtype, shape, data in buffers:
            layout.append(Buffer(name, dtype, tuple(shape), offset, data.nbytes))
            offset += data.nbytes
        self._manifests[version] = WeightsReady(
            version=version,
            buffers=tuple(layout),
            num_bytes=offset,
            chunk_bytes=max(offset, 1),
            chunk_hashes=(),
            probe=probe,
        )
        self._latest = version
        return self._manifests[version]

    def latest(self) -> Version | None:
        return self._latest

    def fetch(self, version: Version) -> StagedWeights:
        if version not in self._manifests:
            raise WeightError(f"version {version} was never published, or is discarded")
        return StagedWeights(self._manifests[version], Path(f"memory/{version}"))

    def discard(self, keep: Iterable[Version]) -> None:
        kept = {*keep, self._latest}
        self._manifests = {version: manifest for version, manifest in self._manifests.items() if version in kept}

    def sweep(self) -> None:
        self._manifests.clear()
        self._latest = None
