"""Writes checkpoints in the background: only the copy to host memory costs the learner time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from olmorl.clock import Clock, within
from olmorl.config import Config
from olmorl.learner.background import Background
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.messages import Begin
from olmorl.ports import BatchSource, Trainer
from olmorl.run_dir import RunFiles


class CheckpointWriter(Background):
    """Writes the checkpoint of a step once, and one checkpoint at a time."""

    def __init__(
        self, rank: int, trainer: Trainer, source: BatchSource, clock: Clock, begin: Begin, config: Config
    ) -> None:
        super().__init__()
        self._rank = rank
        self._trainer = trainer
        self._source = source
        self._folder = RunFiles(config.run_dir).checkpoints
        self._incarnation = begin.incarnation
        self._deadline_s = config.supervision.deadlines.checkpoint_s
        self._disk = DiskWriter(clock, self._deadline_s)
        self._saved = begin.step if begin.checkpoint else None

    async def save(self, step: int) -> None:
        """Start to write this rank's share of the current state. Raises the error of the previous save."""
        if self._saved == step:
            return
        await self.finish()
        self._saved = step
        write = self._trainer.save(checkpoint_dir.shares_of(self._folder, step, self._incarnation))
        self.begin(self._save(step, write))

    async def _save(self, step: int, write: Callable[[], Awaitable[None]]) -> None:
        async def in_time() -> None:
            async with within(self._deadline_s, f"the disk to take step {step}'s share of learner rank {self._rank}"):
                await write()

        await self._disk.write(in_time)
        await self._source.saved(self._rank, step)
