"""The places of the memory plan: kinds of GPUs and hosts, and what each must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

GIB = 2**30
LEARNER_GPU, ENGINE_GPU = "a learner GPU", "an engine GPU"
SHARED_GPU = "the GPU of learner and engine"
LEARNER_HOST, ENGINE_HOST = "a host of the learner", "a host of engines"
THIS_HOST, ONE_HOST = "this host", "the host of learner and engines"
GPU_KEY, HOST_KEY = "cluster.gpu_memory_gib", "cluster.host_memory_gib"


class MemoryPart(NamedTuple):
    """One part of a place's memory."""

    what: str
    num_bytes: int
    note: str = ""


@dataclass(frozen=True)
class MemoryPlace:
    """One kind of GPU or host. `needed` is at most the sum of the parts: some do not live at the same time."""

    name: str
    parts: tuple[MemoryPart, ...]
    needed: int
    limit: int | None
    """Available bytes; None where this is not known before the run."""
    limit_key: str = ""
    """The key that sets the limit."""

    @property
    def fits(self) -> bool:
        return self.limit is None or self.needed <= self.limit

    @property
    def is_host(self) -> bool:
        return self.limit_key == HOST_KEY

    @property
    def peak(self) -> str:
        """The peak and the limit, for people."""
        if self.limit is None:
            return f"{size(self.needed)}  (the limit is not known here: {self.limit_key})"
        return f"{size(self.needed)} of {size(self.limit)}"


def host_place(name: str, parts: Sequence[MemoryPart], limit: int | None) -> MemoryPlace:
    """A host whose parts live at the same time."""
    return MemoryPlace(name, real(parts), sum(part.num_bytes for part in parts), limit, HOST_KEY)


def real(parts: Sequence[MemoryPart]) -> tuple[MemoryPart, ...]:
    """The parts without those of no bytes."""
    return tuple(part for part in parts if part.num_bytes)


def size(num_bytes: int) -> str:
    """Bytes as text."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.1f} MiB"
