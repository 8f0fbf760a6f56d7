"""Says when draws wait for a version that is about to come.

A group must train within `max_lag` versions of its first token. While the learner waits for a straggler, finished
groups gather. Then they train in quick succession, and each step takes a version from the draws that have begun: soon
the longest of them holds up the learner. A draw that waits for the last of these versions loses the time of a few
short steps, and has all its versions.
"""

from __future__ import annotations

from collections import deque

from olmorl.clock import Clock

WORTH = 4.0
"""Draws wait while the learner waits this many times as long for stragglers as it trains. Below it, the slots that stay
free during a step can cost more than the next version gains."""


class VersionWait:
    """Draws wait only while the learner waits far longer for stragglers than it trains."""

    def __init__(self, clock: Clock, steps: int) -> None:
        """The times of the last `steps` steps count, one or more."""
        self._clock = clock
        self._held_up_s: deque[float] = deque(maxlen=steps)
        self._train_s: deque[float] = deque(maxlen=steps)
        self._held_up_at: float | None = None
        self._began: float | None = None

    def held_up(self) -> None:
        """The learner has no batch, because an unfinished draw would grow too old."""
        if self._held_up_at is None:
            self._held_up_at = self._clock.now()

    def paused(self) -> None:
        """The run is paused: nothing but the pause holds the learner up."""
        self._held_up_at = None

    def step_began(self) -> None:
        """The learner has a batch."""
        self._began = now = self._clock.now()
        self._held_up_s.append(0.0 if self._held_up_at is None else now - self._held_up_at)
        self._held_up_at = None

    def step_ended(self) -> None:
        """The learner has trained a batch."""
        if self._began is not None:
            self._train_s.append(self._clock.now() - self._began)
        self._began = None

    @property
    def pays(self) -> bool:
        """Whether a draw gains more by the next version than its wait costs."""
        return sum(self._held_up_s) > WORTH * sum(self._train_s)
