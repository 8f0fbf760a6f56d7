"""Redis Sentinels: each new connection asks them for the primary of a service."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from olmorl.queues.redis_server.url import SENTINEL_PASSWORD, Address, Host

_ANSWER_S = 2.0
"""Deadline of one sentinel. Then the next one is asked."""


class Sentinels(Sentinel):
    """The answer of the first sentinel that knows a live primary counts. Next time it is asked first."""

    def __init__(self, address: Address) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            address.hosts,
            sentinel_kwargs={
                "username": address.to_sentinels.username,
                "password": address.to_sentinels.password,
                "ssl": address.tls,
                "protocol": 2,
                "retry": Retry(NoBackoff(), 0),
            },
        )
        self._asked = list(zip(address.hosts, self.sentinels, strict=True))

    async def discover_master(self, service_name: str) -> Host:
        """The address of the primary. Raises MasterNotFoundError with the answer of each sentinel."""
        said = []
        for asked in list(self._asked):
            place, sentinel = asked
            try:
                async with asyncio.timeout(_ANSWER_S):
                    states: Any = await sentinel.sentinel_masters()
            except (exceptions.RedisError, TimeoutError) as error:
                said.append(f"the sentinel {place} {_silence(error)}")
                continue
            if service_name not in states:
                known = ", ".join(sorted(states)) or "none"
                said.append(f"the sentinel {place} knows no service {service_name!r}, only {known}")
                continue
            state = states[service_name]
            primary = Host(state["ip"], state["port"])
            if self.check_master_state(state, service_name):
                self._asked.sort(key=lambda other: other is not asked)
                return primary
            said.append(f"the sentinel {place} says that {primary}, the primary of {service_name}, is down")
        raise MasterNotFoundError("; ".join(said))


def _silence(error: Exception) -> str:
    if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
        return f"refuses the credentials: {error} (set {SENTINEL_PASSWORD} in the environment)"
    return f"does not answer: {error}" if str(error) else f"does not answer within {_ANSWER_S:g} s"


class PrimaryPool(SentinelConnectionPool):
    """One primary at a time: once another is named, no new call uses a connection to the previous one."""

    def __init__(self, service: str, sentinels: Sentinels, **settings: Any) -> None:
        super().__init__(service, sentinels, **settings)  # type: ignore[no-untyped-call]

    async def get_master_address(self) -> Host:
        before = self.master_address
        # Drops idle connections; a connection in use finishes its call.
        address: Host = await super().get_master_address()  # type: ignore[no-untyped-call]
        if before not in (None, address):
            await self.update_active_connections_for_reconnect()  # type: ignore[no-untyped-call]
        return address

    async def aclose(self) -> None:
        """Close the connections to the primary and to the sentinels."""
        await super().aclose()
        await self.sentinel_manager.aclose()
