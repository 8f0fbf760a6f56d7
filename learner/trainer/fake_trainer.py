"""A trainer without a model: its steps take the time that `Simulation` gives."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from pathlib import Path

from olmorl import metrics
from olmorl.clock import Clock
from olmorl.config import SamplingSettings
from olmorl.learner.storage import durable_files
from olmorl.messages import Probe, Shard
from olmorl.ports import NamedBuffer
from olmorl.simulation import Simulation

DIGEST_BYTES = 16


class FakeTrainer:
    """Its weights are a digest of all batches in order, so equal histories have equal weights."""

    def __init__(self, simulation: Simulation, clock: Clock, rank: int = 0, ranks_a_row: int = 1) -> None:
        self._ranks_a_row = ranks_a_row
        self._simulation = simulation
        self._clock = clock
        self._rank = rank
        self.weights = bytes(DIGEST_BYTES)

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """Take a step. Values that need a model or other ranks are 0."""
        rows = list(chain.from_iterable(shard.minibatches))
        samples = list(chain.from_iterable(rows))
        tokens = sum(len(sample.completion_ids) for sample in samples) / self._ranks_a_row
        await self._clock.sleep(self._simulation.train_overhead_s + tokens / self._simulation.train_tokens_per_s)
        digest = hashlib.blake2b(self.weights, digest_size=DIGEST_BYTES)
        digest.update(str([sorted(sample.draw_id for sample in row) for row in rows]).encode())
        self.weights = digest.digest()
        ones = dict.fromkeys(("importance_ess_fraction", "importance_ess_fraction_answers"), 1.0)
        return dict.fromkeys(metrics.LEARNER, 0.0) | ones | {"lr": shard.learning_rate or 0.0}

    def interrupt(self) -> None:
        """Does nothing: a simulated step has no micro-batches."""

    def snapshot(self) -> list[NamedBuffer]:
        """All of it is in the shard of rank 0."""
        if self._rank:
            return [NamedBuffer("digest", "uint8", (DIGEST_BYTES,), memoryview(b""), after=DIGEST_BYTES)]
        return [NamedBuffer("digest", "uint8", (DIGEST_BYTES,), memoryview(self.weights))]

    def probe(self) -> Probe | None:
        """Made-up log-probabilities that change with the weights."""
        return None if self._rank else Probe(tuple(range(DIGEST_BYTES + 1)), tuple(-byte / 64 for byte in self.weights))

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        return partial(self._write, folder / f"rank_{self._rank}", self.weights)

    async def _write(self, path: Path, weights: bytes) -> None:
        await self._clock.sleep(self._simulation.save_s)
        durable_files.write_whole(path, [weights])

    def restore(self, folder: Path) -> None:
        # The checkpoint may be of fewer ranks. A real trainer gathers the shares of all ranks.
        own = folder / f"rank_{self._rank}"
        self.weights = (own if own.exists() else folder / "rank_0").read_bytes()

    def export(self, folder: Path, sampling: SamplingSettings) -> None:
        """Write a note that there is no model to export: rank 0 alone, because each rank has its own digest."""
        if self._rank:
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(f"A simulated run. Digest of its history: {self.weights.hex()}\n")

    def close(self) -> None: ...
