"""A trainer without a model: it takes as long as `config.Simulation` says, and remembers what it was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from pathlib import Path

from olmorl import metrics
from olmorl.clock import Clock
from olmorl.config import Simulation
from olmorl.learner import durable
from olmorl.messages import Shard
from olmorl.ports import NamedBuffer

DIGEST_BYTES = 16


class FakeTrainer:
    """Its weights are a digest of every batch it was trained on, in order: equal histories have equal weights."""

    def __init__(self, simulation: Simulation, clock: Clock, rank: int = 0) -> None:
        self._simulation = simulation
        self._clock = clock
        self._rank = rank
        self.weights = bytes(DIGEST_BYTES)

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """As the port says; ranks do not talk, so values that need a model or other ranks are 0."""
        rows = list(chain.from_iterable(shard.minibatches))
        samples = list(chain.from_iterable(rows))
        tokens = sum(len(sample.completion_ids) for sample in samples)
        await self._clock.sleep(tokens / self._simulation.train_tokens_per_s)
        digest = hashlib.blake2b(self.weights, digest_size=DIGEST_BYTES)
        digest.update(str([sorted(sample.draw_id for sample in row) for row in rows]).encode())
        self.weights = digest.digest()
        return dict.fromkeys(metrics.LEARNER, 0.0) | {"lr": 1.0}

    def interrupt(self) -> None:
        """Its step has no micro-batches: it ends as it would have."""

    def snapshot(self) -> list[NamedBuffer]:
        if self._rank:
            return []
        return [NamedBuffer("digest", "uint8", (DIGEST_BYTES,), memoryview(self.weights))]

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        return partial(self._write, folder / f"rank_{self._rank}", self.weights)

    async def _write(self, path: Path, weights: bytes) -> None:
        await self._clock.sleep(self._simulation.save_s)
        durable.write_whole(path, [weights])

    def restore(self, folder: Path) -> None:
        # There may have been fewer ranks; a real one gathers what all of them saved.
        own = folder / f"rank_{self._rank}"
        self.weights = (own if own.exists() else folder / "rank_0").read_bytes()

    def export(self, folder: Path) -> None:
        """There is no model to export; the folder says so."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(f"A simulated run. Digest of its history: {self.weights.hex()}\n")

    def close(self) -> None: ...
