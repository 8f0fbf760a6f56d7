"""Versions published in Ray's object store, for hosts that share no storage. The one file of the queues with ray.

    publisher (learner)   puts chunks, keeps them alive, and shows their references on the board
    board (Ray actor)     shows them to every host; the publisher could show all of it again
    reader (actor host)   asks the board, and pulls chunks from the store of the publisher's host

Chunks live as long as the publisher: its next start publishes again.
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
from olmorl.queues.weights.deltas import Packer, Published, with_bases

NAMESPACE = "olmorl"
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
    """A version on the board: its encoded manifest, and the reference of each chunk."""

    manifest: bytes
    chunks: Sequence[ray.ObjectRef]


class Board:
    """A Ray actor that shows the versions of the newest incarnation of the learner. Versions are named as text."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove every version from the board."""
        self._incarnation = -1
        self._latest: str | None = None
        self._versions: Mapping[str, BoardEntry] = {}

    def show(self, incarnation: int, latest: str, versions: Mapping[str, BoardEntry]) -> int:
        """Replace all versions, unless a newer incarnation has; returns the incarnation that the board shows now."""
        if incarnation >= self._incarnation:
            self._incarnation, self._latest, self._versions = incarnation, latest, versions
        return self._incarnation

    def latest(self) -> str | None:
        return self._latest

    def version(self, name: str) -> BoardEntry | None:
        return self._versions.get(name)


class PublishedObjects:
    """Keeps the published versions on the board, also after the board died or hung. Implements `store.Published`."""

    def __init__(self, run: str, packer: Packer) -> None:
        self._name = f"olmorl-weights-{run}"
        self._packer = packer
        self._board: Any = None
        self._mine: dict[Version, BoardEntry] = {}
        self._bases: dict[Version, Version | None] = {}
        """Of the versions above."""
        self._latest: Version | None = None

    def __str__(self) -> str:
        return "Ray's object store"

    # --- the publisher's side

    def publish(self, version: Version, buffers: Iterable[NamedBuffer], probe: Probe | None = None) -> WeightsReady:
        if version in self._mine:
            raise ValueError(f"version {version} exists; a version is never overwritten")
        packing = self._packer.pack(version, buffers, probe)
        try:
            chunks = [ray.put(np.frombuffer(chunk, np.uint8)) for chunk in packing]
        except RayError as error:
            raise WeightError(
                f"version {version}: {self} does not take it ({_first_line(error)}); give the learner's first host "
                "more with `ray start --object-store-memory`"
            ) from error
        manifest = packing.manifest()
        self._mine[version] = BoardEntry(encode(manifest), chunks)
        self._bases[version] = manifest.delta.base if manifest.delta else None
        self._latest = version
        self._show()
        self._packer.keep()
        return manifest

    def discard(self, keep: Iterable[Version]) -> None:
        if self._latest is None:
            return
        kept = with_bases({*keep, self._latest}, self._bases.get)
        dropped = self._mine.keys() - kept
        for version in dropped:
            del self._mine[version], self._bases[version]
        if dropped or self._is_lost():
            self._show()

    def sweep(self) -> None:
        self._mine.clear()
        self._bases.clear()
        self._latest = None
        with suppress(WeightError):
            if ray.is_initialized() and (board := self._find()) is not None:
                self._ask(board, "clear")

    def _is_lost(self) -> bool:
        """Whether the board is gone, or shows what an earlier start published."""
        assert self._latest is not None
        try:
            shown = self.latest()
        except WeightError:
            return True
        return shown is None or shown < self._latest

    def _show(self) -> None:
        assert self._latest is not None
        versions = {str(version): shown for version, shown in self._mine.items()}
        give_up = time.monotonic() + SHOW_DEADLINE_S
        while True:
            try:
                board = self._board = self._find() or self._make()
                owner = self._ask(board, "show", self._latest.incarnation, str(self._latest), versions)
                break
            except WeightError as error:
                if time.monotonic() > give_up:
                    raise
                if isinstance(error, _Silent):
                    ray.kill(board)
                    self._board = None
                time.sleep(_RETRY_S)
        if owner > self._latest.incarnation:
            raise Superseded(f"publish of version {self._latest}: incarnation {owner} has published")

    def _make(self) -> Any:
        """A board on this host, which ends with this process."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"name": self._name, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0}
        return ray.remote(Board).options(**options, scheduling_strategy=here).remote()

    # --- the reader's side

    def latest(self) -> Version | None:
        board = self._find()
        latest = None if board is None else self._ask(board, "latest")
        return None if latest is None else Version.parse(latest)

    def open(self, version: Version) -> Published:
        board = self._find()
        shown: BoardEntry | None = None if board is None else self._ask(board, "version", str(version))
        if shown is None:
            raise WeightError(f"version {version} is not in {self}: never published, or discarded")
        return Published(decode(shown.manifest, WeightsReady), _pull(version, shown.chunks))

    def _find(self) -> Any:
        """The board's handle, or None while there is no board."""
        if self._board is None:
            try:
                self._board = ray.get_actor(self._name, NAMESPACE)
            except ValueError:
                return None
            except RayError as error:
                raise WeightError(f"the weight board {self._name} is not to be found: {_first_line(error)}") from error
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
            raise WeightError(f"the weight board {self._name} is lost: {_first_line(error)}") from error


def _pull(version: Version, refs: Sequence[ray.ObjectRef]) -> Iterator[memoryview]:
    for first in range(0, len(refs), CHUNKS_AT_ONCE):
        try:
            arrays = ray.get(refs[first : first + CHUNKS_AT_ONCE], timeout=PULL_DEADLINE_S)
        except RayError as error:
            raise WeightError(
                f"version {version}: chunks from {first} of {len(refs)} did not come: {_first_line(error)}"
            ) from error
        for array in arrays:
            yield memoryview(array)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
