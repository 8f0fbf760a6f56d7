"""The circuit breaker: while a service is down, calls wait instead of failing."""

from __future__ import annotations

import asyncio

from olmorl.clock import Clock
from olmorl.verifiers.judge.service.call_counts import CallCounts

FIRST_PAUSE_S = 0.5


class CircuitBreaker:
    """While the breaker is open, at most one call is running, and only after the pause.

    closed ──`threshold` failures in a row──> open ──pause──> one call tries ──success──> closed
                                                ^────failure, a pause twice as long────┘

    A call reports with its number from `admit`, so a late end of an older call does not count for the trial.
    """

    def __init__(self, threshold: int, longest_pause_s: float, clock: Clock, counters: CallCounts) -> None:
        self._threshold = threshold
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._counters = counters
        self._failures = 0
        self._number = 0
        self._trying = False
        self._pause_s = min(FIRST_PAUSE_S, self._longest_pause_s)
        self._retry_at = 0.0
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls wait."""
        return self._counters.breaker_open

    def admit(self) -> int | None:
        """The number of a call that may start now; None if it may not."""
        if self.is_open:
            if not self._may_try():
                return None
            self._trying = True
            self._number += 1
        return self._number

    async def wait(self, until: float) -> bool:
        """Wait until a call may start. Returns False if the time `until` comes first."""
        while self.is_open and not self._may_try():
            now = self._clock.now()
            if now >= until:
                return False
            await self._change(min(until, max(self._retry_at, now) if not self._trying else until) - now)
        return True

    @property
    def pause_left_s(self) -> float:
        return max(self._retry_at - self._clock.now(), 0.0) if self.is_open else 0.0

    def succeeded(self) -> None:
        """Close the breaker, because any success shows that the service works."""
        self._failures = 0
        self._pause_s = min(FIRST_PAUSE_S, self._longest_pause_s)
        self._counters.breaker_open = self._trying = False
        self._notify()

    def failed(self, number: int, asked_s: float = 0.0) -> None:
        """Count a failure of call `number`, and open the breaker after too many.

        Args:
            asked_s: the pause in seconds that the service asked for.
        """
        if number != self._number:
            return
        if self.is_open:
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        else:
            self._failures += 1
            if self._failures < self._threshold:
                return
            self._counters.breaker_open = True
            self._counters.openings += 1
            self._number += 1
        self._trying = False
        self._retry_at = self._clock.now() + max(self._pause_s, asked_s)
        self._notify()

    def over(self, number: int) -> None:
        """The call is over. If it was cancelled, the next call may try."""
        if self.is_open and number == self._number:
            self._trying = False
            self._notify()

    def _may_try(self) -> bool:
        return not self._trying and self._clock.now() >= self._retry_at

    async def _change(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        """Wake all waiting calls."""
        self._changed.set()
        self._changed = asyncio.Event()
