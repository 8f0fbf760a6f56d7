"""The circuit breaker in simulated time."""

from __future__ import annotations

import asyncio

from olmorl.clock import LoopClock, run_simulated
from olmorl.verifiers.check_outcomes import numbers
from olmorl.verifiers.judge.service.call_counts import CallCounts
from olmorl.verifiers.judge.service.circuit_breaker import FIRST_PAUSE_S, CircuitBreaker

LONGEST_S = 30.0


def opened(threshold: int = 2) -> tuple[CircuitBreaker, CallCounts]:
    calls = CallCounts()
    breaker = CircuitBreaker(threshold, LONGEST_S, LoopClock(), calls)
    for _ in range(threshold):
        number = breaker.admit()
        assert number is not None
        breaker.failed(number)
    return breaker, calls


def test_it_opens_after_failures_in_a_row_only() -> None:
    async def scenario() -> None:
        breaker = CircuitBreaker(2, LONGEST_S, LoopClock(), CallCounts())
        for _ in range(5):
            number = breaker.admit()
            assert number is not None
            breaker.failed(number)
            breaker.succeeded()
        assert not breaker.is_open
        breaker, calls = opened()
        assert breaker.is_open and calls.openings == 1
        assert numbers(calls)["breaker_open"] == 1.0
        assert breaker.admit() is None

    run_simulated(scenario())


def test_one_call_tries_after_the_pause_and_its_failure_doubles_it() -> None:
    async def scenario() -> None:
        breaker, calls = opened()
        clock, pause = LoopClock(), FIRST_PAUSE_S
        for _ in range(10):
            before = clock.now()
            assert await breaker.wait(float("inf"))
            assert abs(clock.now() - before - pause) < 1e-6
            number = breaker.admit()
            assert number is not None
            assert breaker.admit() is None
            breaker.failed(number)
            pause = min(2 * pause, LONGEST_S)
        assert calls.openings == 1
        assert await breaker.wait(float("inf"))
        breaker.admit()
        breaker.succeeded()
        assert not breaker.is_open and breaker.admit() is not None
        assert numbers(calls)["breaker_open"] == 0.0

    run_simulated(scenario())


def test_the_service_says_how_long_to_wait() -> None:
    async def scenario() -> None:
        breaker, clock = CircuitBreaker(1, LONGEST_S, LoopClock(), CallCounts()), LoopClock()
        number = breaker.admit()
        assert number is not None
        breaker.failed(number, asked_s=17.0)
        assert await breaker.wait(float("inf"))
        assert abs(clock.now() - 17.0) < 1e-6

    run_simulated(scenario())


def test_a_wait_has_an_end_and_success_ends_every_wait() -> None:
    async def scenario() -> None:
        breaker, _ = opened()
        clock = LoopClock()
        assert await breaker.wait(float("inf"))
        breaker.admit()
        waiting = [asyncio.create_task(breaker.wait(clock.now() + 100.0)) for _ in range(3)]
        assert not await breaker.wait(clock.now() + 5.0)
        breaker.succeeded()
        started = clock.now()
        assert await asyncio.gather(*waiting) == [True] * 3
        assert clock.now() == started

    run_simulated(scenario())


def test_a_cancelled_trial_lets_another_try_and_late_failures_do_not_count() -> None:
    async def scenario() -> None:
        breaker = CircuitBreaker(2, LONGEST_S, LoopClock(), CallCounts())
        late = breaker.admit()
        assert late is not None
        breaker.failed(late)
        breaker.failed(late)
        assert await breaker.wait(float("inf"))
        trial = breaker.admit()
        assert trial is not None and breaker.admit() is None
        breaker.failed(late)
        assert breaker.admit() is None
        breaker.over(trial)
        assert breaker.admit() is not None

    run_simulated(scenario())
