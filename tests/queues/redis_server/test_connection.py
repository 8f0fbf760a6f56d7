"""Connecting to Redis, and waiting while it does not answer."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from redis.exceptions import ResponseError

from olmorl.clock import SystemClock
from olmorl.config import QueueSettings, build
from olmorl.errors import ConfigError, QueueUnavailable, ResourceError, Superseded
from olmorl.messages import Failure, Prompt, Version
from olmorl.ports import CommitOutcome
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server.connection import connect
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from olmorl.queues.redis_server.url import Address, Credentials, Host, parse_url, secrets_of


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


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"220 mail.example.org ESMTP\r\n",
    ],
)
async def test_what_answers_and_is_no_redis_is_called_so(greeting: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(greeting)
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ResourceError, match=rf"queue\.url: redis://127\.0\.0\.1:{port}/0 answers but is no Redis"):
            await connect(f"redis://127.0.0.1:{port}/0", SystemClock(), 2.0, 5.0, {})


@asynccontextmanager
async def gate(server: EmbeddedRedis) -> AsyncIterator[Gate]:
    gate = Gate(int(server.url.split(":")[2].split("/")[0]))
    listening = await asyncio.start_server(gate.pass_on, "127.0.0.1", 0)
    gate.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        listening.close()


@asynccontextmanager
async def queue_behind_gate(
    server: EmbeddedRedis, run: str, outage_deadline_s: float
) -> AsyncIterator[tuple[RedisQueue, Gate]]:
    """The queue of a run, with its claim."""
    async with gate(server) as between:
        settings = QueueSettings(outage_deadline_s=outage_deadline_s)
        queue = await RedisQueue.connect(between.url, run, settings, 10, SystemClock(), server.environment)
        await queue.claim(1)
        yield queue, between
        await queue.close()


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
    assert address == Address((Host("queue.example", 6380),), 2, True, Credentials("u", "p"))
    assert str(address) == "rediss://queue.example:6380/2"
    assert "'p'" not in repr(address)
    assert parse_url("redis://localhost", {}) == Address((Host("localhost", 6379),), 0, False)
    assert parse_url("redis://[::1]:7000/1", {}) == Address((Host("::1", 7000),), 1, False)


def test_sentinels_have_a_service_and_a_password_of_their_own() -> None:
    address = parse_url("rediss+sentinel://one,two:26380/queue/3", {"OLMORL_REDIS_SENTINEL_PASSWORD": "s"})
    hosts = (Host("one", 26379), Host("two", 26380))
    assert address == Address(hosts, 3, True, Credentials(), "queue", Credentials(None, "s"))
    assert str(address) == "rediss+sentinel://one:26379,two:26380/queue/3"
    assert parse_url("redis+sentinel://one/queue", {}).database == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host:6379", "redis://host:6379/0"),
        ("host:6379", r"redis\+sentinel://host:26379,host:26379/service/0"),
        ("redis://[::1", "redis://host:6379/0"),
        ("redis://", "a host is missing"),
        ("redis://host:port", "numbers"),
        ("redis://host/zero", "number"),
        ("redis://one,two/0", "several hosts are sentinels"),
        ("redis+sentinel://one,two/", "the service of the sentinels is missing"),
        ("redis+sentinel://one,/queue", "a host is missing"),
        ("redis+sentinel://one/queue/zero", "number"),
    ],
)
def test_a_bad_url_says_what_to_write(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_url(url, {})


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host",
        "rediss://user@host",
        "redis+sentinel://u:secret@a,b/queue",
        "redis://host/0?password=secret",
        "redis://host/0#secret",
    ],
)
def test_a_recipe_takes_no_credentials_and_does_not_repeat_them(url: str) -> None:
    with pytest.raises(ConfigError, match="OLMORL_REDIS_PASSWORD_FILE") as caught:
        build({"queue": {"url": url}})
    assert "secret" not in str(caught.value)


def test_secrets_come_from_files_too(tmp_path: Path) -> None:
    file = tmp_path / "password"
    environment = {"OLMORL_REDIS_PASSWORD_FILE": str(file), "OLMORL_REDIS_USERNAME": "queue"}
    with pytest.raises(ConfigError, match=f"OLMORL_REDIS_PASSWORD_FILE = {file}: cannot be read: No such file"):
        secrets_of(environment)
    file.write_text("\n")
    with pytest.raises(ConfigError, match=f"{file}: the file is empty"):
        secrets_of(environment)
    file.write_text("of the file\n")
    assert parse_url("redis://host", environment).credentials == Credentials("queue", "of the file")
    with pytest.raises(ConfigError, match="both set"):
        secrets_of({**environment, "OLMORL_REDIS_PASSWORD": "another"})


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


@asynccontextmanager
async def answering(refusal: str) -> AsyncIterator[str]:
    """A Redis that refuses the first HSET with these words, and then does all that it is asked."""
    refusals = [f"-{refusal}\r\n".encode()]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            for command in re.split(rb"(?m)^(?=\*\d+\r$)", data)[1:]:
                writer.write(refusals.pop() if b"HSET" in command and refusals else b"+OK\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
    assert not refusals


@pytest.mark.parametrize(
    "refusal",
    [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write to a replica.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "MASTERDOWN RedisConnection with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "LOADING Redis is loading the dataset in memory",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    ],
)
async def test_what_a_redis_refuses_now_it_may_do_later(refusal: str) -> None:
    async with answering(refusal) as url:
        link = await connect(url, SystemClock(), 5, 10, {})
        assert await link.command("a test", "HSET", "key", "field", "value") in (b"OK", "OK", True)
        await link.close()


async def test_what_a_redis_will_never_do_is_an_error_at_once() -> None:
    async with answering("WRONGTYPE Operation against a key holding the wrong kind of value") as url:
        link = await connect(url, SystemClock(), 5, 10, {})
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await link.command("a test", "HSET", "key", "field", "value")
        await link.close()


@pytest.mark.cluster
async def test_a_commit_whose_answer_was_lost_is_stored_once(server: EmbeddedRedis) -> None:
    async with queue_behind_gate(server, "lost", 30) as (queue, between):
        await queue.push([prompt(1)])
        [lease] = await queue.lease("actor-0", 1, "train", 0)
        between.losing = True
        committing = asyncio.create_task(queue.commit(lease, Failure(prompt=lease.prompt, cause="unscorable")))
        await between.second_loss.wait()
        between.losing = False
        assert await committing is CommitOutcome.STORED
        assert await queue.counts("train") == (0, 0, 1, 0, 0)


@pytest.mark.cluster
async def test_leases_whose_answer_was_lost_are_handed_out_once(server: EmbeddedRedis) -> None:
    async with queue_behind_gate(server, "handed", 30) as (queue, between):
        await queue.push([prompt(number) for number in range(5)])
        between.losing = True
        leasing = asyncio.create_task(queue.lease("actor-0", 2, "train", 0))
        await between.second_loss.wait()
        between.losing = False
        leases = await leasing
        assert [(lease.prompt.draw_id, lease.prompt.attempt) for lease in leases] == [(0, 1), (1, 1)]
        assert (await queue.counts("train"))[:2] == (3, 2)
        assert [lease.prompt.draw_id for lease in await queue.lease("actor-0", 2, "train", 0)] == [2, 3]
        assert await queue.extend(leases) == set()
        assert await queue.release_dead_actor("actor-0") == 4


@pytest.mark.cluster
async def test_an_outage_over_its_deadline_names_what_was_waited_for(server: EmbeddedRedis) -> None:
    async with queue_behind_gate(server, "outage", 0.3) as (queue, between):
        between.losing = True
        with pytest.raises(QueueUnavailable, match=r"counts of lane train of run outage: .* not answered for 0.3 s"):
            await queue.counts("train")
        between.losing = False
        assert (await queue.counts("train")).live == 0


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


@pytest.mark.cluster
async def test_a_replica_is_left_for_the_next_server_of_the_address(server: EmbeddedRedis) -> None:
    link = await connect(server.url, SystemClock(), 10, 60, server.environment)
    number = await link.command("a test", "CLIENT", "ID")
    await link.command("a test", "REPLICAOF", "127.0.0.1", 1)
    # Redis 6 says of a script only that it failed, and why in the text.
    writing = asyncio.create_task(link.command("a test", "EVAL", "return redis.call('INCR', KEYS[1])", 1, "counter"))
    await asyncio.sleep(0.3)
    assert not writing.done()
    await link.command("a test", "REPLICAOF", "NO", "ONE")
    assert await writing == 1
    assert await link.command("a test", "CLIENT", "ID") > number + 1
    await link.close()


@pytest.mark.cluster
async def test_a_claim_that_a_fail_over_lost_refuses_nobody(server: EmbeddedRedis) -> None:
    queue = await RedisQueue.connect(server.url, "claim", QueueSettings(), 10, SystemClock(), server.environment)
    await queue.claim(2)
    await queue._link.command("a test", "HSET", "olmorl:{claim}:claim", "incarnation", 1)
    await queue.push([prompt(1)])
    [lease] = await queue.lease("actor-0", 1, "train", 0)
    await queue.commit(lease, Failure(prompt=lease.prompt, cause="unscorable"))
    assert [item.draw_id for item in await queue.take(10, "train", 0)] == [1]
    await queue.claim(2)
    assert [item.draw_id for item in await queue.take(10, "train", 0)] == [1]
    await queue._link.command("a test", "HSET", "olmorl:{claim}:claim", "incarnation", 3)
    with pytest.raises(Superseded, match="incarnation 2 is superseded by incarnation 3"):
        await queue.push([prompt(2)])
    await queue.close()
