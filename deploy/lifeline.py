"""Who has no launcher: as long as the learner trains, all go on; after that nobody waits for ever.

attendance   the assembler's: whether a launcher looks after the run, or it trains
lifeline     of each process on a cluster: asks the assembler, and ends with its cause when nobody needs it any more
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from olmorl.clock import Clock
from olmorl.config import Supervision
from olmorl.deploy import namespace, semaphores

log = logging.getLogger(__name__)
ASK_S = 20.0
GRACE_S = 3.0
"""For the others in the same place to write their last line."""


class Attendance:
    """A run is needed while a launcher looks at it, and while its learner trains."""

    def __init__(self, settings: Supervision, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._looked_at = clock.now()

    def looked(self) -> None:
        """A launcher has asked for something."""
        self._looked_at = self._clock.now()

    def needed(self, pulses: Collection[float], overdue: bool) -> bool:
        """Whether somebody needs the run, given when each rank of a learner at work last gave a sign of life.

        Args:
            overdue: something that is waited for will not come.
        """
        now = self._clock.now()
        if now - self._looked_at < self._settings.launcher_deadline_s:
            return True
        return bool(pulses) and not overdue and now - min(pulses) < self._settings.answer_deadline_s


class Lifeline:
    """A process that nobody has needed for `supervision.launcher_deadline_s` ends, and frees its place.

    Args:
        needed: whether somebody needs it; may block.
        end: called at the end with the cause.
    """

    def __init__(self, settings: Supervision, needed: Callable[[], bool], end: Callable[[str], None]) -> None:
        self._deadline_s = settings.launcher_deadline_s
        self._needed = needed
        self._end = end

    def start(self) -> None:
        """Watch from now on, in a thread of its own."""
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
    """Whether an assembler of this run says that it goes on."""
    try:
        return any(namespace.ask_all("assembler", "needed", ASK_S))
    except Exception as error:  # the watch goes on whatever it is
        log.warning("the assembler cannot be found: %s", error)
        return False


def end(cause: str, sweep: Callable[[], None]) -> None:
    """End this process, and everything that it keeps from others."""
    log.error(cause)
    try:
        for last_act in (sweep, semaphores.unlink_own, partial(time.sleep, GRACE_S), namespace.leave):
            try:
                last_act()
            except Exception:
                log.exception("at the end")
    finally:
        os._exit(1)
