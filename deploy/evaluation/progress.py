"""Says on standard error how far the answers are."""

from __future__ import annotations

import time

from olmorl.deploy.verify.summary import PLAIN_S
from olmorl.deploy.view.console import SafeConsole


class Progress:
    """Prints how many answers are scored, every ten seconds."""

    def __init__(self, name: str) -> None:
        self._people = SafeConsole(stderr=True, highlight=False)
        self._name = name
        self._said_at = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done == of or now - self._said_at >= PLAIN_S:
            self._said_at = now
            self._people.print(f"{self._name}: {done:,} of {of:,} answers", markup=False, soft_wrap=True)
