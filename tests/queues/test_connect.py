"""Reaching a Redis, and what happens while it does not answer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.errors import ConfigError, QueueUnavailable, ResourceError
from olmorl.messages import Failure, Prompt, Version
from olmorl.ports import CommitOutcome
from olmorl.queues.connect import connect, parse_url
from olmorl.queues.embedded import EmbeddedRedis
from olmorl.queues.redis import RedisQueue


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis"), fsync="no") as server:
        yield server


def prompt(draw_id: int) -> Prompt:
    return Prompt(
        draw_id=draw_id,
        row="f:1",
        messages="?",
        token_ids=np.zeros(1, dtype=np.int32),
        datasets=(),
        ground_truths=(),
        group_size=2,
        min_version=Version(1, 0),
    )


@asynccontextmanager
async def gate(server: EmbeddedRedis) -> AsyncIterator[Gate]:
    gate = Gate(int(server.url.split(":")[2].split("/")[0]))
    listening = await asyncio.start_server(gate.pass_on, "127.0.0.1", 0)
    gate.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        listening.close()


class Gate:
    """Passes bytes between clients and a Redis; when `losing`, it cuts a connection instead of passing an answer on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.losing = False
        self.second_loss = asyncio.Event()
        self._losses = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def requests() -> None:
            while data := await reader.read(1 << 16):
                server_writer.write(data)
            server_writer.close()

        sending = asyncio.create_task(requests())
        while data := await server_reader.read(1 << 16):
            if self.losing:
                self._losses += 1
                if self._losses == 2:
                    self.second_loss.set()
                break
            writer.write(data)
        writer.close()
        server_writer.close()
        await asyncio.wait([sending])


def test_the_address_is_the_url_and_the_credentials_are_not() -> None:
    address = parse_url("rediss://queue.example:6380/2", {"OLMORL_REDIS_USERNAME": "u", "OLMORL_REDIS_PASSWORD": "p"})
    assert address == ("queue.example", 6380, 2, True, "u", "p")
    assert str(address) == "rediss://queue.example:6380/2"
    assert parse_url("redis://localhost", {}) == ("localhost", 6379, 0, False, None, None)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:secret@host:6379", "OLMORL_REDIS_PASSWORD"),
        ("redis://user@host:6379", "OLMORL_REDIS_USERNAME"),
        ("http://host:6379", "redis://host:port/database"),
        ("host:6379", "redis://host:port/database"),
        ("redis://host:port", "numbers"),
        ("redis://host/zero", "numbers"),
    ],
)
def test_a_bad_url_says_what_to_write(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_url(url, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("listening", [False, True])
async def test_a_redis_that_does_not_answer_is_a_clear_error(listening: bool) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listening:
            silent.listen()
        port = silent.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(ResourceError, match=f"no Redis answers at redis://127.0.0.1:{port}/0 within 0.3 s"):
            await connect(f"redis://127.0.0.1:{port}", SystemClock(), 0.3, 10, {})
        assert time.monotonic() - start < 5


@pytest.mark.cluster
@pytest.mark.parametrize("environment", [{}, {"OLMORL_REDIS_PASSWORD": "wrong"}])
async def test_refused_credentials_are_a_clear_error(server: EmbeddedRedis, environment: dict[str, str]) -> None:
    with pytest.raises(ResourceError, match="set OLMORL_REDIS_USERNAME and OLMORL_REDIS_PASSWORD"):
        await connect(server.url, SystemClock(), 5, 5, environment)


@pytest.mark.cluster
async def test_a_commit_whose_answer_was_lost_is_stored_once(server: EmbeddedRedis) -> None:
    async with gate(server) as between:
        settings = QueueSettings(outage_deadline_s=30)
        queue = await RedisQueue.connect(between.url, "lost", settings, 10, SystemClock(), server.environment)
        await queue.claim(1)
        await queue.push([prompt(1)])
        [lease] = await queue.lease("actor-0", 1, "train", 0)
        between.losing = True
        committing = asyncio.create_task(queue.commit(lease, Failure(prompt=lease.prompt, cause="unscorable")))
        await between.second_loss.wait()
        between.losing = False
        assert await committing is CommitOutcome.STORED
        assert await queue.counts("train") == (0, 0, 1, 0, 0)
        await queue.close()


@pytest.mark.cluster
async def test_an_outage_over_its_deadline_names_what_was_waited_for(server: EmbeddedRedis) -> None:
    async with gate(server) as between:
        settings = QueueSettings(outage_deadline_s=0.3)
        queue = await RedisQueue.connect(between.url, "outage", settings, 10, SystemClock(), server.environment)
        await queue.claim(1)
        between.losing = True
        with pytest.raises(QueueUnavailable, match=r"counts of lane train of run outage: .* not answered for 0.3 s"):
            await queue.counts("train")
        between.losing = False
        assert (await queue.counts("train")).live == 0
        await queue.close()


@pytest.mark.cluster
async def test_scripts_are_sent_again_to_a_redis_that_was_restarted(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, fsync="always") as server:
        settings = QueueSettings(outage_deadline_s=30)
        queue = await RedisQueue.connect(server.url, "restart", settings, 10, SystemClock(), server.environment)
        await queue.claim(1)
        await queue.push([prompt(1), prompt(2)])
        [lease] = await queue.lease("actor-0", 1, "train", 0)
        server.close()
        committing = asyncio.create_task(queue.commit(lease, Failure(prompt=lease.prompt, cause="unscorable")))
        await asyncio.sleep(0.2)
        server.start()
        assert await committing is CommitOutcome.STORED
        assert await queue.counts("train") == (1, 0, 1, 0, 0)
        await queue.close()
