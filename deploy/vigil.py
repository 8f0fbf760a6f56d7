"""How long no actor has been at work, as far as somebody looked."""

from __future__ import annotations

import time
from math import inf

from olmorl.deploy.supervise import LONGEST_GAP_S


class Vigil:
    """Before the first actor works each start has a deadline of its own; later one may take what starts have taken."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is how long nobody may be at work."""
        self._limit_s = limit_s
        self._since = time.monotonic()
        self._looked_at = -inf
        self._longest_start_s = 0.0
        self._ever = False

    def looked(self) -> None:
        """The heartbeats of all actors are known."""
        self._looked_at = time.monotonic()

    @property
    def sees(self) -> bool:
        """Whether it is known who works: not while an assembler starts, nor after the launcher itself stood still."""
        return time.monotonic() - self._looked_at < LONGEST_GAP_S

    def started(self, start_s: float) -> None:
        """An actor is at work, after a start that took so long."""
        self._ever, self._longest_start_s = True, max(self._longest_start_s, start_s)

    def watch(self, at_work: bool) -> float:
        """Look whether anybody is `at_work`; returns for how long nobody was, once that is too long, else 0."""
        if at_work or not self.sees:
            self._since = time.monotonic()
        silent_s = time.monotonic() - self._since
        return silent_s if self._ever and silent_s > max(self._limit_s, 2 * self._longest_start_s) else 0.0
