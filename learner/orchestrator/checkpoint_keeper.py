"""Which complete checkpoints stay, and which of them become exports, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from olmorl.config import Config
from olmorl.errors import OlmoRLError
from olmorl.learner.background import in_thread
from olmorl.learner.storage import best_checkpoint, checkpoint_dir
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)
Export = Callable[[int], Awaitable[None]]
"""Writes the export of a step; it is complete or absent."""


class CheckpointKeeper:
    """The newest checkpoints stay, the best one, and those that wait for their evaluation or their export."""

    def __init__(self, config: Config, settings: Callable[[int], Config], export: Export | None) -> None:
        """`settings` are those of a step. Without `export` there are no exports."""
        self._files = RunFiles(config.run_dir)
        self._checkpoint = config.checkpoint
        self._last_step = config.schedule.steps
        self._settings = settings
        self._export = export
        self._exporting: asyncio.Task[None] | None = None
        self._given_up: set[int] = set()
        """Steps whose export failed in this start."""
        self._lock = asyncio.Lock()

    async def tidy(self, step: int) -> None:
        """Remove the checkpoints that need not stay, and begin the exports that are due. `step` steps are done."""
        async with self._lock:
            await in_thread(self._tidy, self._settings(step))
        self.begin_exports()

    def is_metric(self, name: str) -> bool:
        """Whether this metric decides which checkpoint is the best."""
        return name == self._checkpoint.best

    def _tidy(self, settings: Config) -> None:
        also = set(self._due())
        if metric := self._checkpoint.best:
            best, evaluated = best_checkpoint.update(self._files, metric)
            also |= {best.step} if best else set()
            there = checkpoint_dir.steps(self._files.checkpoints)
            also |= {step for step in there if step > evaluated and self._is_evaluated(step, settings)}
        checkpoint_dir.retain(self._files.checkpoints, settings.checkpoint.keep, also)

    def _is_evaluated(self, step: int, settings: Config) -> bool:
        return step % settings.evaluation.every == 0 or step == self._last_step

    # --- exports ------------------------------------------------------------------------------------

    def _due(self) -> list[int]:
        """The complete checkpoints whose export is missing."""
        every = self._checkpoint.export_every
        if every is None or self._export is None:
            return []
        steps = set(checkpoint_dir.steps(self._files.checkpoints)) - self._given_up
        return sorted(step for step in steps if step % every == 0 and not self._files.export_of(step).exists())

    def begin_exports(self) -> None:
        """Make the exports that are due, one after the other. Those that an earlier start left are made again."""
        if self._checkpoint.export_every and self.idle:
            self._exporting = asyncio.create_task(self._export_all())

    async def _export_all(self) -> None:
        while self._export is not None and (due := self._due()):
            try:
                await self._export(due[0])
            except (OlmoRLError, OSError) as error:
                self._given_up.add(due[0])
                log.error("the export of step %d failed, and the run goes on without it: %s", due[0], error)

    @property
    def idle(self) -> bool:
        """Whether no export is under way."""
        return self._exporting is None or self._exporting.done()

    async def close(self) -> None:
        """End the export under way. While the run has steps left, the next start makes it."""
        if self._exporting is not None:
            self._exporting.cancel()
            await asyncio.wait([self._exporting])
        for step in self._due():
            log.warning("the export of step %d is not made yet: olmorl-ctl RUN export FOLDER --step %d", step, step)
