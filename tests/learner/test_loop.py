"""A rank's loop: a snapshot in memory that is used again is taken only when nobody reads the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from olmorl import config
from olmorl.clock import LoopClock
from olmorl.learner import loop
from olmorl.messages import Begin, Probe, StepReport, Stop, Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.memory_store import MemoryWeightStore

STEPS = 4
PUBLISH_S = 0.05


class Source:
    """Gives some steps, each published, then a stop."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    async def begin(self, rank: int) -> Begin:
        return Begin(incarnation=1, step=0, checkpoint=None)

    async def next(self, rank: int, step: int) -> Any:
        if step > STEPS:
            return Stop(reason="done")
        return SimpleNamespace(step=step, publish=True, checkpoint=False)

    async def report(self, report: StepReport) -> None:
        self.reports.append(report)

    async def published(self, version: Version, seconds: float) -> None: ...

    async def saved(self, rank: int, step: int) -> None: ...

    async def stop_asked(self) -> bool:
        await asyncio.sleep(60)
        return False


class Trainer:
    """Its weights are the number of the step; all snapshots are in the same memory."""

    def __init__(self) -> None:
        self._step = 0
        self._memory = bytearray(8)

    async def train(self, shard: Any) -> dict[str, float]:
        self._step = shard.step
        return {}

    def snapshot(self) -> list[NamedBuffer]:
        self._memory[:] = bytes([self._step]) * 8
        return [NamedBuffer("w", "uint8", (8,), memoryview(self._memory))]

    def probe(self) -> Probe | None:
        return None

    def interrupt(self) -> None: ...

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        return lambda: asyncio.sleep(0)


class SlowStore(MemoryWeightStore):
    """Reads the bytes of a version some time after the publish began."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[int, bytes] = {}

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        time.sleep(PUBLISH_S)
        [buffer] = list(buffers)
        self.bytes[version.number] = bytes(buffer.data)
        super().publish(version, [buffer], probe, rank, ranks)


async def test_every_version_has_the_bytes_of_its_step(tmp_path: Path) -> None:
    store, source, trainer = SlowStore(), Source(), Trainer()
    settings = config.build({"run": {"directory": tmp_path, "mode": "simulated"}})
    adapters: Any = (trainer, source, store)
    await loop.run(0, *adapters, LoopClock(), settings)
    assert store.bytes == {step: bytes([step]) * 8 for step in range(STEPS + 1)}
    waits = [report.values["learner_publish_wait_s"] for report in source.reports]
    snapshots = [report.values["learner_snapshot_s"] for report in source.reports]
    assert min(waits) > PUBLISH_S / 2 and max(snapshots) < PUBLISH_S / 2, "the wait is not counted as the snapshot"
