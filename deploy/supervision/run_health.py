"""The progress of the run, which the launcher exports to Prometheus for the alerts."""

from __future__ import annotations

import shutil
from collections import deque
from statistics import median

from olmorl.config import Config
from olmorl.learner.storage import checkpoint_dir
from olmorl.run_dir import RunFiles

DISK_S = 5.0
"""Interval between two checks of the disk."""
_MOST_STEPS = 32


class RunHealth:
    """The time of the last step is when the launcher saw it. Times are of one monotonic clock, in seconds."""

    def __init__(self, settings: Config, now: float) -> None:
        self._settings = settings
        self._files = RunFiles(settings.run_dir)
        self._checkpoint_every = settings.checkpoint.every
        self._step: int | None = None
        self._since = self._next_look = now
        self._periods: deque[float] = deque(maxlen=_MOST_STEPS)

    def note(self, step: int, now: float, checkpoint_every: int | None = None) -> None:
        """Note that `step` steps are done. The first step seen may be of an earlier start: its time is unknown."""
        self._checkpoint_every = checkpoint_every or self._checkpoint_every
        if step == self._step:
            return
        if self._step is not None and step > self._step:
            self._periods += [(now - self._since) / (step - self._step)] * (step - self._step)
        self._step, self._since = step, now

    def progress(self, now: float, paused: bool) -> dict[str, float]:
        """The time since the last step, and the usual time. No step is late in a pause, and after the last one."""
        if paused or self._step == self._settings.schedule.steps:
            self._since = now
        return {
            "since_step_s": now - self._since,
            "step_period_s_median": median(self._periods) if self._periods else 0.0,
            "steps_wanted": self._settings.schedule.steps,
            "lag_bound": self._settings.schedule.max_lag,
            "planned_actors_per_learner": self._settings.actors.nodes / self._settings.learner.nodes,
            "checkpoint_every_steps": self._checkpoint_every,
        }

    def disk(self, step: int, now: float) -> dict[str, float]:
        """The room for the run, and the steps that a loss of the learner would repeat. Blocks.

        Empty when the disk does not answer, and until `DISK_S` after the last look.
        """
        if now < self._next_look:
            return {}
        self._next_look = now + DISK_S
        try:
            usage = shutil.disk_usage(self._files.run_dir)
            newest = max(checkpoint_dir.steps(self._files.checkpoints), default=0)
        except OSError:
            return {}
        return {"disk_free_ratio": usage.free / usage.total, "steps_since_checkpoint": max(step - newest, 0)}
