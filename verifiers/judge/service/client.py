"""Asks a service over HTTP, with bounded concurrency, retries and a circuit breaker.

ask ──> circuit breaker, where calls wait while the service is down ──> one of `concurrency` permits ──> endpoint
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from olmorl.clock import Clock
from olmorl.config import HttpService
from olmorl.verifiers.judge.service.cache import Cache
from olmorl.verifiers.judge.service.call_counts import CallCounts
from olmorl.verifiers.judge.service.circuit_breaker import CircuitBreaker
from olmorl.verifiers.judge.service.endpoint import JudgeEndpoint
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable, UnreadableReply

T = TypeVar("T")
FIRST_BACKOFF_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 120.0
"""The longest pause that a service can ask for, in seconds."""
TRIALS = 4
"""At least this many pauses fit into the deadline of an outage, so no call gives up without a trial."""

RETRIES = 4
"""Retries of a failed call while other calls succeed."""
BREAKER_THRESHOLD = 5
"""Failures in a row after which the service counts as down and calls wait."""
CACHE_SIZE = 10_000
"""Most scores in the cache. Equal requests share a score."""


class Client:
    """Every request ends with its reply or with the reason why there is none."""

    def __init__(self, endpoint: JudgeEndpoint, settings: HttpService, clock: Clock) -> None:
        self.counters = CallCounts()
        self.cache = Cache(CACHE_SIZE)
        self._endpoint = endpoint
        self._settings = settings
        self._clock = clock
        self._longest_asked_s = min(LONGEST_ASKED_S, settings.outage_deadline_s / TRIALS)
        self._longest_pause_s = min(LONGEST_PAUSE_S, settings.outage_deadline_s / TRIALS)
        self._breaker = CircuitBreaker(BREAKER_THRESHOLD, self._longest_pause_s, clock, self.counters)
        self._permits = asyncio.Semaphore(settings.concurrency)

    async def ask(self, request: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
        """Send a request and return the result of `read` on the body of the reply.

        The wait is bounded. It ends after `RETRIES` further failures while other calls succeed, or
        `outage_deadline_s` after the first call that failed or was not allowed to start.

        Raises:
            Rejected: the service refuses this request.
            UnreadableReply: raised by `read`.
            Unavailable: the wait ended, or `read` got a body that no working service sends.
        """
        tries, failures, give_up_at, last = 0, 0, float("inf"), "other calls failed"
        while True:
            if self._breaker.is_open:
                give_up_at = min(give_up_at, self._clock.now() + self._settings.outage_deadline_s)
            if self._clock.now() >= give_up_at or not await self._breaker.wait(give_up_at):
                raise Unavailable(f"down for {self._settings.outage_deadline_s:g} s; {last}")
            try:
                return await self._attempt(request, read)
            except _OpenedMeanwhile:
                continue
            except Unavailable as error:
                give_up_at = min(give_up_at, self._clock.now() + self._settings.outage_deadline_s)
                tries, last = tries + 1, str(error)
                # While the breaker is open, the service is at fault and not this request.
                failures += not (self._breaker.is_open or error.busy)
                if failures > RETRIES:
                    raise
                await self._clock.sleep(min(self._backoff_s(tries, error.asked_s), self._left_s(give_up_at)))
            self.counters.retries += 1

    async def close(self) -> None:
        """Close all connections."""
        await self._endpoint.close()

    async def _attempt(self, request: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
        async with self._permits:
            number = self._breaker.admit()
            if number is None:
                raise _OpenedMeanwhile
            started = self._clock.now()
            self.counters.calls += 1
            try:
                reply = read(await self._endpoint.post(request))
                self._breaker.succeeded()
                return reply
            except UnreadableReply:
                self._breaker.succeeded()
                raise
            except Rejected:
                self._breaker.failed(number)
                raise
            except Unavailable as error:
                self._breaker.failed(number, min(error.asked_s, self._longest_asked_s))
                raise
            finally:
                self._breaker.over(number)
                self.counters.seconds += self._clock.now() - started

    def _backoff_s(self, tries: int, asked_s: float) -> float:
        """Seconds before the next try. A request that failed waits longer than others, so another makes the trial."""
        own = min(FIRST_BACKOFF_S * 2.0 ** min(tries - 1, 10), self._longest_pause_s) * random.uniform(0.5, 1.0)
        return max(own, min(asked_s, self._longest_asked_s), self._breaker.pause_left_s * random.uniform(1.02, 1.2))

    def _left_s(self, until: float) -> float:
        return max(until - self._clock.now(), 0.0)


class _OpenedMeanwhile(Exception):
    """The breaker opened while the call waited for a permit."""
