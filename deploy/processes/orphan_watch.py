"""A run without its launcher: while the learner trains, every process continues; after that each one ends.

LauncherPresence   in the orchestrator: whether a launcher looks after the run, or the learner trains
OrphanWatch        in each process on a cluster: asks the orchestrator, and ends the process when the run is not needed
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from olmorl.actors.vllm_engine import reaper
from olmorl.clock import Clock
from olmorl.config import Supervision
from olmorl.deploy.cluster import named_actors

log = logging.getLogger(__name__)
ASK_S = 20.0
GRACE_S = 3.0
"""Time for the other processes of this placement group to write their last line."""


class LauncherPresence:
    """A run is needed while a launcher looks after it, and while its learner trains."""

    def __init__(self, settings: Supervision, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._noted_at = clock.now()

    def note(self) -> None:
        """A launcher looks after the run now."""
        self._noted_at = self._clock.now()

    def run_is_needed(self, pulses: Collection[float], overdue: bool) -> bool:
        """Whether the run should go on without a launcher.

        Args:
            pulses: when each rank of a learner that trains last gave a sign of life.
            overdue: a wait has passed its deadline.
        """
        now = self._clock.now()
        if now - self._noted_at < self._settings.launcher_deadline_s:
            return True
        return bool(pulses) and not overdue and now - min(pulses) < self._settings.deadlines.answer_s


class OrphanWatch:
    """Ends a process, and frees its place, when the run has not been needed for `supervision.launcher_deadline_s`.

    Args:
        needed: whether the run is needed; may block.
        end: called with the cause.
    """

    def __init__(self, settings: Supervision, needed: Callable[[], bool], end: Callable[[str], None]) -> None:
        self._deadline_s = settings.launcher_deadline_s
        self._needed = needed
        self._end = end

    def start(self) -> None:
        """Watch from now on, in a separate thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        needed_at = time.monotonic()
        while time.monotonic() - needed_at < self._deadline_s:
            time.sleep(min(ASK_S, self._deadline_s / 4))
            if self._needed():
                needed_at = time.monotonic()
        self._end(
            f"for {self._deadline_s:g} s there was no launcher, and no learner that trains "
            "(supervision.launcher_deadline_s): this process ends; --resume goes on with the run"
        )


def needed() -> bool:
    """Whether an orchestrator of this run says that the run goes on."""
    try:
        return any(named_actors.ask_all("orchestrator", "needed", ASK_S))
    except Exception as error:  # after any error the watch continues
        log.warning("the orchestrator cannot be found: %s", error)
        return False


def end(cause: str, sweep: Callable[[], None]) -> None:
    """End this process, and free everything that it holds."""
    log.error(cause)
    try:
        for last_act in (sweep, reaper.unlink_own_semaphores, partial(time.sleep, GRACE_S), named_actors.leave):
            try:
                last_act()
            except Exception:
                log.exception("at the end")
    finally:
        os._exit(1)
