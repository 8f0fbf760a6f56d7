"""A Redis whose primary changes: which server is asked, which is trusted, and how a former primary is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.errors import ResourceError
from olmorl.queues.redis_server.connection import connect
from olmorl.queues.redis_server.persistence_check import examine
from tests.queues.redis_server.sentinels import ENVIRONMENT, PASSWORD, SERVICE, Watched, until, watched

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watched")) as servers:
        yield servers


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A sentinel that accepts connections and does not answer."""
    listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    listening.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def refusal(url: str, environment: dict[str, str], deadline_s: float = 1.0) -> str:
    with pytest.raises(ResourceError) as caught:
        await connect(url, SystemClock(), deadline_s, 10, environment)
    return str(caught.value)


async def test_the_first_sentinel_that_answers_is_enough(servers: Watched, silent: str) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},{silent},127.0.0.1:{servers.sentinel.port}/{SERVICE}"
    link = await connect(url, SystemClock(), 10, 10, ENVIRONMENT)
    assert int((await link.info("a test", "server"))["tcp_port"]) == servers.first.port
    await link.close()


async def test_the_error_says_what_each_sentinel_said(servers: Watched) -> None:
    port, nobody = servers.sentinel.port, free_port()
    said = await refusal(f"redis+sentinel://127.0.0.1:{nobody}/{SERVICE}", ENVIRONMENT)
    assert f"the sentinel 127.0.0.1:{nobody} does not answer" in said
    said = await refusal(f"redis+sentinel://127.0.0.1:{port}/another", ENVIRONMENT)
    assert f"the sentinel 127.0.0.1:{port} knows no service 'another', only {SERVICE}" in said
    said = await refusal(servers.url, {"OLMORL_REDIS_PASSWORD": PASSWORD})
    assert "refuses the credentials" in said and "OLMORL_REDIS_SENTINEL_PASSWORD" in said
    said = await refusal(servers.url, {**ENVIRONMENT, "OLMORL_REDIS_PASSWORD": "wrong"})
    assert f"Redis at {servers.url} refuses" in said and "set OLMORL_REDIS_USERNAME and OLMORL_REDIS_PASSWORD" in said


async def test_what_a_primary_keeps_is_examined(servers: Watched) -> None:
    settings = QueueSettings(outage_deadline_s=5)
    assert "append-only file, fsync everysec" in await examine(servers.url, ENVIRONMENT, settings)
    servers.first.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ResourceError, match="CONFIG SET maxmemory-policy noeviction"):
        await examine(servers.url, ENVIRONMENT, settings)
    servers.first.client.config_set("maxmemory-policy", "noeviction")


async def test_a_primary_that_is_demoted_is_left_by_all_connections(servers: Watched) -> None:
    link = await connect(servers.url, SystemClock(), 10, 60, ENVIRONMENT)
    blocked = asyncio.create_task(link.command("a test", "XREAD", "BLOCK", 6000, "STREAMS", "nothing", "$"))
    await link.command("a test", "SET", "key", "before")
    until(lambda: servers.second.client.get("key") == "before")
    # It refuses while the last word it has of the replica is some seconds old.
    until(lambda: servers.sentinel.client.execute_command("SENTINEL", "FAILOVER", SERVICE))
    until(lambda: servers.second.client.info("replication")["role"] == "master")
    # The sentinel does this some seconds later. It would also close our connections.
    servers.first.client.replicaof("127.0.0.1", servers.second.port)
    await link.command("a test", "SET", "key", "between")
    await link.command("a test", "EVAL", "return redis.call('SET', KEYS[1], 'after')", 1, "key")
    assert servers.second.client.get("key") == "after"
    ports = [int((await link.info("a test", "server"))["tcp_port"]) for _ in range(3)]
    await blocked
    assert ports == [servers.second.port] * 3
    assert int((await link.info("a test", "server"))["tcp_port"]) == servers.second.port
    await link.close()
