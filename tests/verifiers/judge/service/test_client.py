"""The client in simulated time, over an endpoint that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from olmorl.clock import LoopClock, run_simulated
from olmorl.config import HttpService
from olmorl.verifiers.judge.service import client as service_client
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable, UnreadableReply

Behaviour = Callable[[Mapping[str, Any]], Exception | None]


class ToldEndpoint:
    """Takes a second for each call."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.times: list[float] = []
        self.running = self.most_running = 0

    async def post(self, request: Mapping[str, Any]) -> bytes:
        self.times.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(1.0)
            error = self.behaviour(request)
            if error is not None:
                raise error
            return b"fine"
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.times.clear()


def client(behaviour: Behaviour, **settings: Any) -> tuple[Client, ToldEndpoint]:
    endpoint = ToldEndpoint(behaviour)
    return Client(endpoint, HttpService(url="http://judge", **settings), LoopClock()), endpoint


def now() -> float:
    return asyncio.get_running_loop().time()


async def asked(client: Client, **request: Any) -> str:
    return await client.ask(request, lambda body: body.decode())


def down_until(time: float) -> Behaviour:
    return lambda request: Unavailable("down") if now() < time else None


def test_an_outage_is_waited_for_and_nobody_fails() -> None:
    async def scenario() -> None:
        one, endpoint = client(down_until(300.0), concurrency=8)
        assert await asyncio.gather(*(asked(one, n=n) for n in range(100))) == ["fine"] * 100
        assert 300.0 < now() < 400.0
        # Eight fail at the same time; then one call at a time, after pauses of up to 30 s.
        assert len([t for t in endpoint.times if t < 300.0]) < 30
        assert one.counters.openings == 1
        assert one.counters.calls == len(endpoint.times) == 100 + one.counters.retries

    run_simulated(scenario())


def test_an_outage_past_the_deadline_is_an_error_with_its_cause() -> None:
    async def scenario() -> None:
        one, _ = client(down_until(1e9), timeout_s=6.0)
        results = await asyncio.gather(*(asked(one, n=n) for n in range(50)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) and "down" in str(result) for result in results)
        assert 60.0 <= now() < 80.0
        with pytest.raises(Unavailable, match="down for 60 s"):
            await asked(one, n=50)
        assert 120.0 <= now() < 150.0

    run_simulated(scenario())


def test_a_request_that_breaks_the_service_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "BREAKER_THRESHOLD", 1)

    async def scenario() -> None:
        one, _ = client(lambda r: Unavailable("crashed") if r.get("poison") else None)
        poison = [asyncio.create_task(asked(one, poison=True)) for _ in range(3)]
        await asyncio.sleep(5.0)
        started = now()
        assert await asyncio.gather(*(asked(one, n=n) for n in range(20))) == ["fine"] * 20
        assert now() - started < 120.0
        results = await asyncio.gather(*poison, return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)

    run_simulated(scenario())


def test_retries_end_while_others_succeed() -> None:
    async def scenario() -> None:
        one, endpoint = client(lambda r: Unavailable("no") if r.get("poison") else None)

        async def others() -> None:
            while True:
                await asked(one)

        busy = asyncio.create_task(others())
        with pytest.raises(Unavailable, match="no"):
            await asked(one, poison=True)
        busy.cancel()
        assert one.counters.retries == service_client.RETRIES and one.counters.openings == 0
        assert one.counters.calls == len(endpoint.times)

    run_simulated(scenario())


def test_a_service_with_a_rate_limit_serves_all_in_the_end() -> None:
    async def scenario() -> None:
        served: list[float] = []

        def limited(request: Mapping[str, Any]) -> Exception | None:
            if served and now() < served[-1] + 2.0:
                return Unavailable("too many", busy=True)
            served.append(now())
            return None

        one, endpoint = client(limited, concurrency=32)
        assert await asyncio.gather(*(asked(one, n=n) for n in range(60))) == ["fine"] * 60
        assert len(endpoint.times) < 60 * 16
        one, _ = client(lambda r: Unavailable("too many", busy=True), timeout_s=3.0)
        started = now()
        with pytest.raises(Unavailable, match="too many"):
            await asked(one)
        assert 30.0 <= now() - started < 40.0

    run_simulated(scenario())


def test_the_bound_on_calls_at_once_and_no_permit_held_in_a_pause() -> None:
    async def scenario() -> None:
        one, endpoint = client(lambda r: None, concurrency=3)
        await asyncio.gather(*(asked(one, n=n) for n in range(30)))
        assert endpoint.most_running == 3 and now() == pytest.approx(10.0)
        failed: list[float] = []

        def once(request: Mapping[str, Any]) -> Exception | None:
            if request["n"] or failed:
                return None
            failed.append(now())
            return Unavailable("busy", asked_s=50.0)

        two, _ = client(once, concurrency=1)
        started, slow = now(), asyncio.create_task(asked(two, n=0))
        await asyncio.sleep(0)
        await asyncio.gather(*(asked(two, n=n) for n in range(1, 5)))
        assert now() - started == pytest.approx(5.0)
        assert await slow == "fine"
        assert now() - started >= 51.0

    run_simulated(scenario())


def test_what_the_service_says_of_the_request_is_not_asked_again() -> None:
    async def scenario() -> None:
        one, endpoint = client(lambda r: Rejected("too long") if r.get("long") else None)
        with pytest.raises(Rejected):
            await asked(one, long=True)

        def unreadable(body: bytes) -> str:
            raise UnreadableReply("8/10")

        with pytest.raises(UnreadableReply):
            await one.ask({}, unreadable)
        assert len(endpoint.times) == 2

    run_simulated(scenario())


def test_a_cancelled_call_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "BREAKER_THRESHOLD", 1)

    async def scenario() -> None:
        one, _ = client(down_until(3.0), concurrency=1)
        first = asyncio.create_task(asked(one, n=0))
        await asyncio.sleep(2.5)  # it failed at 1.0 and is trying again
        first.cancel()
        assert await asked(one, n=1) == "fine"
        assert now() < 20.0

    run_simulated(scenario())
