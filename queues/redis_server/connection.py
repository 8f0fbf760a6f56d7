"""The connection to a Redis: its retries while Redis does not answer, and its deadline."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from olmorl.clock import Clock
from olmorl.errors import QueueError, QueueFull, QueueUnavailable, ResourceError, Superseded
from olmorl.queues.redis_server import refusals
from olmorl.queues.redis_server.sentinels import PrimaryPool, Sentinels
from olmorl.queues.redis_server.url import PASSWORD, USERNAME, Address, parse_url

T = TypeVar("T")
Reply = Any
BLOCK_S = 1.0
"""Longest wait of one blocking read. A connection counts as dead much later."""
_ROUND_TRIP_S = 15.0
_MAX_CONNECTIONS = 32
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
# Answers of a Redis that lost its primary role, loads, fails over, or lacks room or replicas: a later try may succeed.
_DEMOTED = ("READONLY", "UNBLOCKED", "MASTERDOWN")
_PASSING = (*_DEMOTED, "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "OOM", "NOREPLICAS", "BUSY")
_REFUSALS: dict[str, type[QueueError]] = {"SUPERSEDED": Superseded, "FULL": QueueFull}


class Script:
    """One atomic step, in Lua. It is sent by its hash, and as text only to a Redis that does not know it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, name: str, *files: Path) -> Script:
        """Join Lua files."""
        return cls(name, "\n".join(file.read_text(encoding="utf-8") for file in files))


class RedisConnection:
    """Every call gets an answer, or ends at the outage deadline with an error that names the wait.

    A call may be sent more than once: a repeat must have no further effect.
    """

    def __init__(self, redis: Redis, address: Address, clock: Clock, outage_deadline_s: float) -> None:
        self._redis = redis
        self._pool: Any = redis.connection_pool
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._idle: list[Any] = []
        self._address = address
        self._clock = clock
        self._outage_deadline_s = outage_deadline_s

    async def command(self, what: str, *parts: Any) -> Reply:
        """One Redis command, its answer as it came."""
        return (await self.pipeline(what, [parts]))[0]

    async def pipeline(self, what: str, commands: Sequence[Sequence[Any]]) -> list[Reply]:
        """Several commands in one round trip, not as a transaction."""
        replies = await self._until_answered(what, lambda: self._send(commands))
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError):
                raise _explain(what, reply)
        return replies

    async def script(self, what: str, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Reply:
        """Run one script."""
        parts = (len(keys), *keys, *arguments)
        try:
            return await self.command(what, "EVALSHA", script.sha, *parts)
        except exceptions.NoScriptError:
            return await self.command(what, "EVAL", script.text, *parts)

    async def info(self, what: str, section: str) -> dict[str, str]:
        """What Redis says about itself, by name."""
        text: bytes = await self.command(what, "INFO", section)
        pairs = (line.partition(":") for line in text.decode().splitlines())
        return {name: value for name, _, value in pairs}

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _send(self, commands: Sequence[Sequence[Any]]) -> list[Reply]:
        async with self._places:
            replies = await self._answers(commands)
        passing = next((reply for reply in replies if _may_pass(reply)), None)
        if passing is None:
            return replies
        if _says(passing, _DEMOTED):
            # Every connection asks for the address, or the sentinels, again.
            await self._pool.update_active_connections_for_reconnect()
        raise passing

    async def _answers(self, commands: Sequence[Sequence[Any]]) -> list[Reply]:
        """The answers to commands, errors too. A pipeline of the library takes 90 µs of CPU more."""
        # A connection stays with this object: the pool makes them, and knows which of them have to reconnect.
        connection = self._idle.pop() if self._idle else await self._pool.get_connection()
        try:
            if connection.should_reconnect():
                await connection.disconnect()
            await self._pool.ensure_connection(connection)
            await connection.send_packed_command(connection.pack_commands(commands))
            return [await _reply(connection) for _ in commands]
        except BaseException:
            # The next call must not get the answers to these commands.
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append(connection)

    async def _ask(self, parts: Sequence[str]) -> list[bytes]:
        """Send a command that only reads, once."""
        [reply] = await self._send([parts])
        if isinstance(reply, exceptions.ResponseError):
            raise reply
        return list(reply)

    async def _until_answered(self, what: str, send: Callable[[], Awaitable[T]]) -> T:
        give_up, pause = self._clock.now() + self._outage_deadline_s, _FIRST_PAUSE_S
        while True:
            try:
                # Not redis' own socket timeout: on Python 3.11 it swallows a cancellation that comes at the same time.
                async with asyncio.timeout(min(_ROUND_TRIP_S, give_up - self._clock.now())):
                    return await send()
            except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
                raise QueueUnavailable(f"{what}: {self._address} refuses the credentials: {error}") from error
            except (exceptions.RedisError, TimeoutError) as error:
                if not _may_pass(error):
                    raise
                if self._clock.now() + pause > give_up:
                    cause = await refusals.explain(error, self._address, self._outage_deadline_s, self._ask)
                    raise QueueUnavailable(f"{what}: {cause}") from error
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _reply(connection: Any) -> Reply:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _may_pass(error: Any) -> bool:
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, TimeoutError)):
        return True
    return isinstance(error, exceptions.ResponseError) and _says(error, _PASSING)


def _says(error: exceptions.RedisError, codes: Sequence[str]) -> bool:
    """Whether the answer has one of the codes: in a field, before its text, or in it (scripts of an old Redis)."""
    text = f"{error.status_code} {error}"
    return any(code in text for code in codes)


def _explain(what: str, error: exceptions.ResponseError) -> Exception:
    kind, _, text = str(error).partition(" ")
    return _REFUSALS[kind](f"{what}: {text}") if kind in _REFUSALS else error


async def connect(
    url: str,
    clock: Clock,
    connect_deadline_s: float,
    outage_deadline_s: float,
    environment: Mapping[str, str] | None = None,
) -> RedisConnection:
    """Connect and check that Redis answers.

    Args:
        environment: where user and password are looked up; default: of this process.

    Raises:
        ConfigError: a malformed URL, or a secret that cannot be read.
        ResourceError: nothing answers within `connect_deadline_s`, or the credentials are refused.
    """
    address = parse_url(url, os.environ if environment is None else environment)
    redis = _client(address, connect_deadline_s)
    try:
        await _first_answer(redis, address, clock, connect_deadline_s)
    except exceptions.InvalidResponse:
        await redis.aclose()
        raise ResourceError(
            f"queue.url: {address} answers but is no Redis: give the host and port of one, or leave queue.url out to "
            "use the embedded one"
        ) from None
    except exceptions.RedisError as error:
        await redis.aclose()
        raise ResourceError(
            f"queue.url: Redis at {address} refuses: {error}; set {USERNAME} and {PASSWORD} in the environment"
        ) from None
    except BaseException:
        await redis.aclose()
        raise
    return RedisConnection(redis, address, clock, outage_deadline_s)


async def _first_answer(redis: Redis, address: Address, clock: Clock, deadline_s: float) -> None:
    last, give_up = None, clock.now() + deadline_s
    while (left_s := give_up - clock.now()) > 0:
        try:
            # One timeout per attempt: redis swallows a cancellation that comes when its own connection timeout passes.
            async with asyncio.timeout(left_s):
                await redis.ping()
            return
        except (exceptions.AuthenticationError, exceptions.AuthorizationError):
            raise
        except TimeoutError:
            break
        except exceptions.RedisError as error:
            if not _may_pass(error):
                raise
            last = error
        await clock.sleep(_FIRST_PAUSE_S)
    raise ResourceError(
        f"queue.url: no Redis answers at {address} within {deadline_s:g} s{f': {last}' if last else ''}: start it, "
        "correct the URL, or leave queue.url out to use the embedded one"
    ) from None


def _client(address: Address, connect_deadline_s: float) -> Redis:
    pool: dict[str, Any] = {
        "db": address.database,
        "username": address.credentials.username,
        "password": address.credentials.password,
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": connect_deadline_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.service:
        return Redis.from_pool(PrimaryPool(address.service, Sentinels(address), ssl=address.tls, **pool))
    [(host, port)] = address.hosts
    kind = SSLConnection if address.tls else Connection
    return Redis.from_pool(ConnectionPool(connection_class=kind, host=host, port=port, **pool))
