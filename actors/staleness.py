"""Measures how far an engine is behind the learner, and for how long."""

from __future__ import annotations

from math import inf

from olmorl.errors import DeadlinePassed
from olmorl.messages import Version

GRACE_S = 5.0
"""Longer than an ordinary update. For this long an engine that is behind continues."""


class LagWatch:
    """An engine that stays more than `max_lag` versions behind loses its prompts, then its actor."""

    def __init__(self, owner: str, max_lag: int, deadline_s: float) -> None:
        self._owner = owner
        self._max_lag = max_lag
        self._deadline_s = deadline_s
        self._newest: Version | None = None
        self._engine: Version | None = None
        self._asked: Version | None = None
        """The newest version that a prompt asked for, until the engine has it."""
        self._since: float | None = None

    def note_versions(self, now: float, newest: Version | None, engine: Version) -> None:
        """At time `now` (s) `newest` is published and the engine has `engine`. Removed versions do not count."""
        if self._newest is None and newest is not None:
            self._since = None  # from now on the engine causes the delay
        self._newest, self._engine = newest, engine
        if not self._is_behind(newest, engine):
            self._since = None
        elif self._since is None:
            self._since = now

    def _is_behind(self, newest: Version | None, engine: Version) -> bool:
        if newest is None:  # the learner loads, or trains journaled batches
            return self._asked is not None and engine < self._asked
        return versions_between(engine, newest) > self._max_lag

    def note_prompt(self, now: float, version: Version, engine: Version) -> None:
        """A prompt asks for `version`, so the learner has published it, perhaps after the last `note_versions`."""
        self._asked = max(version, self._asked or version)
        if self._newest is None:
            self.note_versions(now, None, engine)
        elif version > self._newest:
            self.note_versions(now, version, engine)

    def start_again(self, now: float) -> None:
        """Count the time behind from `now` (s): until now the engine ended its sequences."""
        if self._since is not None:
            self._since = now

    def trails(self, now: float) -> bool:
        """Whether the engine is too far behind, for longer than an update: other actors should get its prompts."""
        return self._since is not None and now - self._since > GRACE_S

    def check(self, now: float, trouble: str) -> None:
        """Raise when the engine was too far behind for too long; `trouble` is the last error.

        Other deadlines cover a learner that publishes nothing.

        Raises:
            DeadlinePassed: the engine has been too far behind for the deadline.
        """
        if self._newest is not None and self._since is not None and now - self._since > self._deadline_s:
            raise DeadlinePassed(
                f"waited {self._deadline_s:g} s for weights {self._newest} of the learner; the engine of {self._owner} "
                f"has {self._engine}, more than max_lag = {self._max_lag} behind (actors.stall_deadline_s)"
                + (f": {trouble}" if trouble else "")
            )


def versions_between(engine: Version, newest: Version) -> float:
    """Versions by which an engine is behind; infinitely many when its version has another incarnation."""
    return newest.number - engine.number if engine.incarnation == newest.incarnation else inf
