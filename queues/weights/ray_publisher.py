"""Versions published in Ray's object store, for hosts that share no storage.

    publisher (learner rank)   puts the chunks of its shard, keeps them alive, and shows their references on the board
    board (Ray actor)          shows them to every host; the publishers could show all of it again
    reader (actor host)        asks the board, and pulls chunks from the stores of the learner's hosts

Chunks live as long as their publisher: the learner's next start publishes again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from olmorl.codec import decode, encode
from olmorl.errors import Superseded, WeightError
from olmorl.messages import Probe, Version, WeightsReady
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import shard_manifest, whole
from olmorl.queues.weights.deltas import Packer, Published, bases, with_bases

_NAMESPACE = "olmorl"
"""Of the Ray actors of the weight store, which are found by their names on all hosts of a run."""
BOARD_DEADLINE_S = 10.0
"""For the board to answer a question."""
SHOW_DEADLINE_S = 60.0
"""For the publisher to be shown, on a new board if the old one died or hangs."""
PULL_DEADLINE_S = 60.0
"""For one pull of `CHUNKS_AT_ONCE`."""
CHUNKS_AT_ONCE = 4
"""Pulled together, so that the network is busy and little is held twice."""
_RETRY_S = 0.5


class _Silent(WeightError):
    """The board gives no answer, and is not known to be dead."""


class BoardEntry(NamedTuple):
    """A shard on the board: its encoded manifest, and the reference of each chunk."""

    manifest: bytes
    chunks: Sequence[ray.ObjectRef]


class Board:
    """A Ray actor that shows the shards of the learner's ranks. A version is there when all its shards are.

    The versions of an older incarnation go when one of a newer incarnation is there.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove every version from the board."""
        self._shards: dict[Version, dict[int, BoardEntry]] = {}
        self._ranks: dict[Version, int] = {}
        """The number of ranks of each version."""
        self._latest: Version | None = None

    def show(self, incarnation: int, rank: int, ranks: int, shards: Mapping[Version, BoardEntry]) -> Version | None:
        """Replace all shards that `rank` of an incarnation shows; returns the latest version.

        Does nothing when a version of a newer incarnation is there.
        """
        if self._latest is not None and self._latest.incarnation > incarnation:
            return self._latest
        for version, found in self._shards.items():
            if version.incarnation == incarnation:
                found.pop(rank, None)
        for version, shard in shards.items():
            self._shards.setdefault(version, {})[rank] = shard
            self._ranks[version] = ranks
        self._latest = max((one for one in self._shards if not self.missing(one, self._ranks[one])), default=None)
        if self._latest is not None:
            oldest = self._latest.incarnation
            self._shards = {one: found for one, found in self._shards.items() if found and one.incarnation >= oldest}
            self._ranks = {one: self._ranks[one] for one in self._shards}
        return self._latest

    def missing(self, version: Version, ranks: int) -> list[int]:
        """Those of `ranks` whose shards of a version are not on the board."""
        found = self._shards.get(version, {})
        return [rank for rank in range(ranks) if rank not in found]

    def latest(self) -> Version | None:
        return self._latest

    def version(self, version: Version) -> list[BoardEntry] | None:
        """Its shards in the order of the ranks, if all are there."""
        found = self._shards.get(version)
        if found is None or self.missing(version, self._ranks[version]):
            return None
        return [found[rank] for rank in sorted(found)]


class PublishedObjects:
    """Keeps the shards of this rank on the board, also after the board died or hung.

    Rank 0 makes the board. Implements `store.PlaceOfPublication`.
    """

    def __init__(self, run: str, packer: Packer) -> None:
        self._name = f"olmorl-weights-{run}"
        self._packer = packer
        self._board: Any = None
        self._rank, self._ranks = 0, 1
        self._mine: dict[Version, BoardEntry] = {}
        self._bases: dict[Version, set[Version]] = {}
        """Versions that a version of `_mine` is built on."""
        self._newest: Version | None = None
        """The newest version of `_mine`."""

    def __str__(self) -> str:
        return "Ray's object store"

    # --- the publisher's side

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None,
        rank: int,
        ranks: int,
    ) -> None:
        if version in self._mine:
            raise ValueError(f"version {version} exists; a version is never overwritten")
        self._rank, self._ranks = rank, ranks
        if rank == 0:
            with suppress(WeightError):  # `_show` tries again
                self._board = self._find() or self._make()  # now: the other ranks may have their chunks there first
        packing = self._packer.pack(version, buffers, probe)
        try:
            chunks = [ray.put(np.frombuffer(chunk, np.uint8)) for chunk in packing]
        except RayError as error:
            raise WeightError(
                f"version {version}: {self} does not take it ({first_line(error)}); give each host of the learner "
                "more with `ray start --object-store-memory`"
            ) from error
        manifest = packing.manifest()
        self._mine[version] = BoardEntry(encode(shard_manifest(manifest, rank)), chunks)
        self._bases[version] = bases(manifest)
        self._newest = version
        self._show()
        self._packer.keep()

    def complete(self, version: Version) -> list[int]:
        missing = self._missing(version)
        if self._rank in missing:
            self._show()
            missing = self._missing(version)
        return missing

    def discard(self, keep: Iterable[Version]) -> None:
        if self._newest is None:
            return
        try:
            latest = self.latest()
        except WeightError:
            latest = None
        kept = {version for version in self._mine if latest is None or version >= latest}
        kept = with_bases({*keep, *kept}, lambda version: self._bases.get(version, ()))
        dropped = self._mine.keys() - kept
        for version in dropped:
            del self._mine[version], self._bases[version]
        if dropped or self._rank in self._missing(self._newest):
            self._show()

    def sweep(self) -> None:
        self._mine.clear()
        self._bases.clear()
        self._newest = None
        with suppress(WeightError):
            if ray.is_initialized() and (board := self._find()) is not None:
                self._ask(board, "clear")

    def _missing(self, version: Version) -> list[int]:
        """The ranks whose shards of a version the board does not show: all of them while the board is gone."""
        try:
            board = self._find()
            missing = range(self._ranks) if board is None else self._ask(board, "missing", version, self._ranks)
        except WeightError:
            missing = range(self._ranks)
        return list(missing)

    def _show(self) -> None:
        assert self._newest is not None
        incarnation, give_up = self._newest.incarnation, time.monotonic() + SHOW_DEADLINE_S
        while True:
            try:
                board = self._board = self._find() or self._make()
                latest = self._ask(board, "show", incarnation, self._rank, self._ranks, self._mine)
                break
            except WeightError as error:
                if time.monotonic() > give_up:
                    raise
                if isinstance(error, _Silent) and self._rank == 0:
                    ray.kill(board)
                    self._board = None
                time.sleep(_RETRY_S)
        self._check_newest(latest)

    def _check_newest(self, latest: Version | None) -> None:
        mine = self._newest
        if latest is not None and mine is not None and latest.incarnation > mine.incarnation:
            raise Superseded(f"publish of version {mine}: incarnation {latest.incarnation} has published {latest}")

    def _make(self) -> Any:
        """A board on this host, which ends with this process."""
        if self._rank:
            raise WeightError(f"the weight board {self._name}, which learner rank 0 makes, is not there")
        return make_here(self._name, Board)

    # --- the reader's side

    def latest(self) -> Version | None:
        board = self._find()
        return None if board is None else self._ask(board, "latest")

    def open(self, version: Version) -> Published:
        board = self._find()
        shown: list[BoardEntry] | None = None if board is None else self._ask(board, "version", version)
        if shown is None:
            raise WeightError(f"version {version} is not in {self}: never published, or discarded")
        manifest = whole([decode(entry.manifest, WeightsReady) for entry in shown])
        return Published(manifest, [_pull(version, entry.chunks) for entry in shown])

    def _find(self) -> Any:
        """The board's handle, or None while there is no board."""
        if self._board is None:
            try:
                self._board = find(self._name)
            except RayError as error:
                raise WeightError(f"the weight board {self._name} is not to be found: {first_line(error)}") from error
        return self._board

    def _ask(self, board: Any, method: str, *args: Any) -> Any:
        try:
            return ray.get(getattr(board, method).remote(*args), timeout=BOARD_DEADLINE_S)
        except GetTimeoutError:
            raise _Silent(
                f"the weight board {self._name} did not answer {method!r} within {BOARD_DEADLINE_S:g} s"
            ) from None
        except RayError as error:
            self._board = None
            raise WeightError(f"the weight board {self._name} is lost: {first_line(error)}") from error


def _pull(version: Version, refs: Sequence[ray.ObjectRef]) -> Iterator[memoryview]:
    for first in range(0, len(refs), CHUNKS_AT_ONCE):
        try:
            arrays = ray.get(refs[first : first + CHUNKS_AT_ONCE], timeout=PULL_DEADLINE_S)
        except RayError as error:
            raise WeightError(
                f"version {version}: chunks from {first} of {len(refs)} did not come: {first_line(error)}"
            ) from error
        for array in arrays:
            yield memoryview(array)


def make_here(name: str, kind: type, *args: Any) -> Any:
    """The Ray actor `name` of this host, made if there is none. It ends with the process that made it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": name, "namespace": _NAMESPACE, "get_if_exists": True, "num_cpus": 0}
    return ray.remote(kind).options(**options, scheduling_strategy=here).remote(*args)


def find(name: str) -> Any:
    """The Ray actor `name`; None if there is none. Raises RayError if Ray does not answer."""
    try:
        return ray.get_actor(name, _NAMESPACE)
    except ValueError:
        return None


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its message: those of Ray are long."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
