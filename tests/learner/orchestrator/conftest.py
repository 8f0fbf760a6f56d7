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
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator import recovery
from olmorl.learner.orchestrator.draw_source import DrawSource
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.storage import ledger
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.learner.waits import Waits
from olmorl.messages import TRAIN_LANE, Failure, Group, Lease, Result, Version
from olmorl.ports import CommitOutcome, Row, Taken
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.run_dir import RunFiles

MakeGroup = Callable[..., Group]


class Parts:
    """One start of a run: `draws` are there while it is open."""

    draws: Draws

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
        stream = PromptStream([Source("train", None, rows(self._num_rows))], 0, epochs=self.settings.data.epochs)
        source = DrawSource(stream, self.settings.sampling.group_size, LoopClock())
        disk = DiskWriter(self.clock, 10.0)
        again, last_step = bool(ledger.incarnations(self.files.ledger)), self.settings.schedule.steps
        recovered = await recovery.recover(
            self.files, self.queue, source, self.clock, disk, last_step=last_step, resume=again
        )
        plan, control = recovered.plan, RunControl(self.queue, Waits(self.clock))
        rollouts = RolloutLog(self.files.rollouts, plan.incarnation, plan.step + 1, disk)
        self.draws = Draws(self.settings, self.queue, recovered, rollouts, disk, self.clock, control, num_ranks=1)
        try:
            yield self
        finally:
            await self.draws.close()

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
        """Hand over all results."""
        await self.draws.accept(100, 0.0)

    @property
    def outcomes(self) -> list[str]:
        """The outcome of every draw, `-` while it has none."""
        return [str(record["outcome"]).replace("in_flight", "-") for record in self.ledger]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """One record for each draw, in their order."""
        return list(ledger.read_ledger(self.files.run_dir))


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
