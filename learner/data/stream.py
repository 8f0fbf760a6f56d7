"""The order in which rows of all data sets are drawn. It can continue from any draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from olmorl.errors import DataError
from olmorl.ports import Row
from olmorl.seeds import derive


class Source(NamedTuple):
    """The usable rows of one data set."""

    name: str
    weight: float | None
    rows: Sequence[Row]


class PromptStream:
    """An order of rows that depends on seed, data and position alone, so that seeking is exact and costs nothing.

    An epoch has as many positions as there are rows. Each source gets a share of them by its weight, or by its number
    of rows when no source has a weight. Within its share a source goes through its rows again and again, each pass in
    a new order. Positions of retired rows are skipped.

    Args:
        sources: results of `Loader.load`.
        seed: of the run.
        shuffle: without it, rows come in the order of their files, and sources are interleaved.
        curriculum: the column of `Row.ease`: each pass of a source goes from the easiest row to the hardest, those of
            unknown ease last. Sources are interleaved.
        epochs: of the whole stream; None: no end.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seed: int,
        shuffle: bool = True,
        epochs: int | None = None,
        curriculum: str | None = None,
    ) -> None:
        self._sources = sources
        self._seed = seed
        self._shuffle = shuffle
        self._curriculum = curriculum
        self._shares = _shares(sources)
        self._epoch_size = sum(self._shares)
        self._end = None if epochs is None else epochs * self._epoch_size
        used = [source for source, share in zip(sources, self._shares, strict=True) if share]
        self._names = {row.row for source in used for row in source.rows}
        self._retired: set[str] = set()
        self._data_hash = _data_hash(sources)
        self._epoch_order = lru_cache(2)(self._make_epoch_order)
        self._pass_order = lru_cache(2 * len(sources))(self._make_pass_order)
        self.position = 0
        """Positions passed so far, retired rows included."""

    def draw(self) -> Row | None:
        """The next row, or None when the epochs are over or every row is retired."""
        while len(self._retired) < len(self._names) and (self._end is None or self.position < self._end):
            row = self.row_at(self.position)
            self.position += 1
            if row.row not in self._retired:
                return row
        return None

    def row_at(self, position: int) -> Row:
        """The row at a position, retired or not."""
        epoch, slot = divmod(position, self._epoch_size)
        index, turn = map(int, self._epoch_order(epoch)[slot])
        rows = self._sources[index].rows
        number, place = divmod(epoch * self._shares[index] + turn, len(rows))
        return rows[int(self._pass_order(index, number)[place])]

    def retire(self, row: str) -> None:
        """Never draw the row of this name again. It may be retired already."""
        if row in self._names:
            self._retired.add(row)

    def is_retired(self, row: str) -> bool:
        return row in self._retired

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as plain values."""
        return {"position": self.position, "retired": sorted(self._retired), "data": self._data_hash, **self._order()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of `state`.

        Raises:
            DataError: the data is not the same, or not in the same order.
        """
        if state["data"] != self._data_hash:
            raise DataError("the training data changed since the checkpoint: restore the files, or start a new run")
        for key, value in self._order().items():
            if state.get(key, value) != value:
                raise DataError(f"{key} was {state[key]} and is {value}: it decides the order of the data; set it back")
        if lost := set(state["retired"]) - self._names:
            raise DataError(
                f"no row is named {min(lost)}, but a row of this name was retired: name the files as before"
            )
        self.position = state["position"]
        self._retired = set(state["retired"])

    def _order(self) -> dict[str, Any]:
        return {"run.seed": self._seed, "data.shuffle": self._shuffle, "data.curriculum": self._curriculum}

    def _make_epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """(positions of an epoch, 2): the source, and the number of its position within this epoch."""
        order = np.array([(i, turn) for i, share in enumerate(self._shares) for turn in range(share)], dtype=np.int64)
        if self._shuffle and not self._curriculum:
            return np.random.default_rng(derive(self._seed, "epoch", epoch)).permutation(order)
        shares = np.array(self._shares)[order[:, 0]]
        return order[np.argsort((order[:, 1] + 0.5) / shares, kind="stable")]

    def _make_pass_order(self, index: int, number: int) -> npt.NDArray[np.int64]:
        """The order of a source's rows in its `number`-th pass."""
        rows = self._sources[index].rows
        order = np.arange(len(rows))
        if self._shuffle:
            order = np.random.default_rng(derive(self._seed, "pass", index, number)).permutation(order)
        if self._curriculum:
            hardness = np.array([np.inf if row.ease is None else -row.ease for row in rows])
            order = order[np.argsort(hardness[order], kind="stable")]
        return order


def _shares(sources: Sequence[Source]) -> list[int]:
    """Positions of each source in an epoch, by largest remainder."""
    counts = [len(source.rows) for source in sources]
    if all(source.weight is None for source in sources):
        return counts
    weights = np.array([1.0 if source.weight is None else source.weight for source in sources])
    exact = weights / weights.sum() * sum(counts)
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: sum(counts) - shares.sum()]] += 1
    return [int(share) for share in shares]


def _data_hash(sources: Sequence[Source]) -> str:
    digest = blake2b(digest_size=16)
    for source in sources:
        digest.update(f"{source.weight}/{len(source.rows)}".encode())
        for row in source.rows:
            digest.update(row.token_ids.tobytes())
            if row.ease is not None:
                digest.update(repr(row.ease).encode())
    return digest.hexdigest()
