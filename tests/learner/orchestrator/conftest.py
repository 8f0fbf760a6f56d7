"""The orchestrator's parts over the in-memory queue and real files, without actors and ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl import config
from olmorl.clock import LoopClock
from olmorl.config import QueueSettings
from olmorl.learner.batching.batch import BatchBuilder
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator import draw_lifecycle, recovery
from olmorl.learner.orchestrator.batcher import Batcher
from olmorl.learner.orchestrator.draw_lifecycle import DrawLifecycle
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.storage import ledger
from olmorl.learner.storage.disk_full import DiskWriter
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import TRAIN_LANE, Failure, Group, Lease, Result, Version
from olmorl.ports import CommitOutcome, Row, Taken
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.run_dir import RunFiles

MakeGroup = Callable[..., Group]


class Parts:
    """One start of a run: `lifecycle` and `batcher` are there while it is open."""

    lifecycle: DrawLifecycle
    batcher: Batcher

    def __init__(self, settings: config.Config, make_group: MakeGroup, num_rows: int) -> None:
        self.settings = settings
        self.clock = LoopClock()
        self.queue = MemoryQueue(QueueSettings(outage_deadline_s=20.0 / 1.5), 1000, self.clock)
        self.files = RunFiles(settings.run_dir)
        self._make_group = make_group
        self._num_rows = num_rows

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Parts]:
        """Begin a start; again for a restart."""
        self.queue = self.queue.another()
        incarnation = ledger.acquire(self.files.ledger)
        await self.queue.claim(incarnation)
        plan = recovery.plan(self.files, incarnation, self.settings.schedule.steps)
        recovery.carry_out(self.files, plan)
        stream = PromptStream([Source("train", None, rows(self._num_rows))], 0, epochs=self.settings.data.epochs)
        draws = Draws(stream, self.settings.sampling.group_size, LoopClock())
        opened = recovery.open_ledger(self.files, plan, draws, self.clock)
        found = await draw_lifecycle.reconcile(self.queue, opened.state)
        disk = DiskWriter(self.clock, 10.0)
        rollouts = RolloutLog(self.files.rollouts, incarnation, plan.step + 1, disk)
        journal, saved = Journal(self.files.journal), None if plan.checkpoint is None else plan.step
        self.lifecycle = DrawLifecycle(
            self.queue, opened, journal, rollouts, draws, disk, incarnation, found, self.files, saved
        )
        builder = BatchBuilder(self.settings, 1)
        self.batcher = Batcher(self.settings, self.lifecycle, builder, self.clock, plan.step, plan.replay_to)
        try:
            async with self.lifecycle.exclusive():
                yield self
        finally:
            await self.lifecycle.close()

    async def answer(self, *rewards: float, number: int = 1, version: Version | None = None) -> list[int]:
        """Lease prompts and commit a group with these rewards for each; returns their draws."""
        leases = await self.queue.lease("a0", number, TRAIN_LANE, 0.0)
        assert len(leases) == number
        for lease in leases:
            await self.finish(lease, *rewards, version=version)
        return [lease.prompt.draw_id for lease in leases]

    async def finish(self, lease: Lease, *rewards: float, version: Version | None = None) -> None:
        """Commit a group with these rewards."""
        made = self._make_group(lease.prompt.draw_id, rewards=rewards, versions=(version or Version(1, 0),))
        await self._commit(lease, replace(made, prompt=lease.prompt))

    async def fail(self, cause: str, detail: str = "", number: int = 1) -> None:
        """Lease prompts and commit a failure for each."""
        for lease in await self.queue.lease("a0", number, TRAIN_LANE, 0.0):
            await self._commit(lease, Failure(prompt=lease.prompt, cause=cause, detail=detail))

    async def _commit(self, lease: Lease, result: Result) -> None:
        assert await self.queue.commit(lease, result) is CommitOutcome.STORED

    async def take(self) -> Sequence[Taken]:
        """All results that were not taken before."""
        return await self.queue.take(100, TRAIN_LANE, 0.0)

    async def settle(self) -> None:
        """Hand all results to the batcher."""
        await self.batcher.settle(await self.take())

    @property
    def outcomes(self) -> list[str]:
        """The outcome of every draw, `-` while it has none."""
        return [str(record["outcome"]).replace("in_flight", "-") for record in self.ledger]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """One record for each draw, in their order."""
        return ledger.read_ledger(self.files.run_dir)


def rows(number: int) -> list[Row]:
    """Distinct usable rows."""
    return [
        Row(f"a.jsonl:{i + 1}", f"{i}", np.array([i, 5], np.int32), ("math",), ("1",), {}, False) for i in range(number)
    ]


@pytest.fixture
def parts(tmp_path: Path, make_group: MakeGroup) -> Callable[..., Parts]:
    """Builds the parts from dotted settings, on top of small defaults."""

    def build(overrides: dict[str, Any] | None = None, num_rows: int = 1000) -> Parts:
        tree: dict[str, Any] = {
            "run": {"directory": tmp_path, "name": "run", "mode": "simulated"},
            "schedule": {"steps": 9, "prompts_per_step": 2, "max_lag": 1, "max_useless_groups": 4},
            "sampling": {"group_size": 2, "max_tokens": 40},
            "learner": {"minibatches": 1},
        }
        for key, value in (overrides or {}).items():
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = value
        return Parts(config.build(tree), make_group, num_rows)

    return build
