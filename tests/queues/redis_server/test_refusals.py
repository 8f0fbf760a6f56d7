"""A Redis that answers but refuses: the message names the disk, its folder, its free space and the fix."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from olmorl import disk_space
from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.errors import QueueUnavailable, ResourceError
from olmorl.learner.storage import durable_files
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server import embedded_server
from olmorl.queues.redis_server.connection import RedisConnection, connect
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from tests.chaos import disk

AOF = "MISCONF Errors writing to the AOF file: "
FREE = r"\([\d.]+ (bytes|[KMGT]iB) of [\d.]+ [KMGT]iB free\)"


@asynccontextmanager
async def refusing(refusal: str, folder: str | None) -> AsyncIterator[RedisConnection]:
    """A link to a Redis that refuses every command but the ones that ask how it is set."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected = False
        while line := await reader.readline():
            words = [(await reader.readline(), await reader.readline())[1].strip() for _ in range(int(line[1:]))]
            if words[:1] == [b"CLIENT"] or (words == [b"PING"] and not connected):
                connected = connected or words == [b"PING"]
                writer.write(b"+OK\r\n")
            elif words == [b"CONFIG", b"GET", b"dir"] and folder is not None:
                writer.write(f"*2\r\n$3\r\ndir\r\n${len(folder.encode())}\r\n{folder}\r\n".encode())
            else:
                writer.write(f"-{refusal}\r\n".encode())

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        link = await connect(f"redis://127.0.0.1:{port}", SystemClock(), 5.0, 0.3, {})
        yield link
        await link.close()


@pytest.mark.parametrize(
    ("refusal", "folder", "expected"),
    [
        (AOF + "No space left on device", "here", rf"the disk of HERE is full {FREE}: Redis at .* --resume"),
        (AOF + "Disk quota exceeded", "here", rf"the disk of HERE is full {FREE}: Redis at .* --resume"),
        (
            AOF + "No space left on device",
            "/not/here",
            "the disk of /not/here on the host of Redis is full: .* --resume",
        ),
        (AOF + "No space left on device", None, r"the disk of Redis at redis://127\.0\.0\.1.* is full: .* --resume"),
        (AOF + "Input/output error", "here", "cannot write to the disk of HERE, .*Input/output error; repair"),
        ("MISCONF Redis is configured to save RDB snapshots", "here", "cannot write to the disk of HERE, .*RDB"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "here", "has had no memory left for .*maxmemory"),
        ("LOADING Redis is loading the dataset in memory", "here", "has refused calls for .*loading the dataset"),
        ("NOREPLICAS Not enough good replicas to write.", "here", "has refused calls for .*Not enough good replicas"),
    ],
)
async def test_a_redis_that_refuses_is_not_one_that_is_silent(
    tmp_path: Path, refusal: str, folder: str | None, expected: str
) -> None:
    place = str(tmp_path) if folder == "here" else folder
    async with refusing(refusal, place) as link:
        with pytest.raises(QueueUnavailable) as caught:
            await link.command("heartbeat of actor-0", "HSET", "statuses", "actor-0", b"")
    said = str(caught.value)
    assert said.startswith("heartbeat of actor-0: ") and " for 0.3 s" in said
    assert re.search(expected.replace("HERE", re.escape(str(tmp_path))), said), said
    assert "has not answered" not in said


async def test_a_redis_that_is_silent_is_said_to_be(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, fsync="no")
    server.start()
    link = await connect(server.url, SystemClock(), 5.0, 0.5, server.environment)
    server.close()
    with pytest.raises(
        QueueUnavailable, match=r"counts: redis://127\.0\.0\.1:\d+/0 has not answered for 0\.5 s: ConnectionError"
    ):
        await link.command("counts", "PING")
    await link.close()


@pytest.mark.skipif(bool(disk.missing()), reason=disk.missing())
async def test_the_embedded_redis_on_a_full_disk(tmp_path: Path) -> None:
    """The server refuses writes until there is disk_space."""
    with disk.mounted(tmp_path / "disk") as small:
        folder = small.folder / "redis"
        with EmbeddedRedis(folder, fsync="everysec") as server:
            settings = QueueSettings(outage_deadline_s=1.0)
            queue = await RedisQueue.connect(server.url, "run", settings, 10, SystemClock(), server.environment)
            await queue.claim(1)
            server.restart_if_lost(30.0)
            assert server.trouble == ""
            small.fill()
            with pytest.raises(QueueUnavailable, match=re.escape(f"the disk of {folder} is full (")) as caught:
                while True:
                    await queue.set_control("actor-0", "drain")
            assert "make room there, then continue with --resume" in str(caught.value)
            server.restart_if_lost(30.0)
            assert server.trouble.startswith(f"the disk of {folder} is full (")
            assert server.trouble.endswith("make room there, and the run continues by itself")
            small.empty()
            give_up = time.monotonic() + 20
            while server.trouble and time.monotonic() < give_up:
                server.restart_if_lost(30.0)
                await asyncio.sleep(0.1)
            assert server.trouble == ""
            await queue.set_control("actor-0", "run")
            await queue.close()


@pytest.mark.skipif(bool(disk.missing()), reason=disk.missing())
async def test_the_embedded_redis_that_ends_on_a_full_disk(tmp_path: Path) -> None:
    """With `always` it ends at every write and starts again: that is one trouble, not many."""
    with disk.mounted(tmp_path / "disk") as small:
        folder = small.folder / "redis"
        with EmbeddedRedis(folder, fsync="always") as server:
            small.fill()
            link = await connect(server.url, SystemClock(), 5.0, 1.0, server.environment)
            for _ in range(5):
                with pytest.raises(QueueUnavailable):
                    for _ in range(5000):
                        await link.command("order", "SET", "key", bytes(10_000))
                server.restart_if_lost(30.0)
                assert server.trouble.startswith(f"the disk of {folder} is full (")
            small.empty()
            server.restart_if_lost(30.0)
            assert (server.trouble, server.alive) == ("", True)
            await link.close()


@pytest.mark.skipif(bool(disk.missing()), reason=disk.missing())
def test_an_embedded_redis_that_cannot_start_for_want_of_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "find_server", lambda: Path("/bin/false"))
    with disk.mounted(tmp_path / "disk") as small:
        folder = small.folder / "redis"
        folder.mkdir()
        with pytest.raises(ResourceError, match=r"ended at once; see .*redis\.log"):
            EmbeddedRedis(folder).start()
        small.fill()
        with pytest.raises(
            ResourceError, match=rf"ended at once: the disk of {folder} is full {FREE}; make room there"
        ):
            EmbeddedRedis(folder).start()


def test_a_full_disk_of_the_run_directory_is_said_with_its_room(tmp_path: Path) -> None:
    error = durable_files.unwritable(tmp_path / "journal" / "1.batch", OSError(28, os.strerror(28)))
    pattern = rf"1\.batch: No space left on device: the disk of .*journal is full {FREE}; make room there$"
    assert re.search(pattern, str(error)), error


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (13_421_773, "12.8 MiB"),
        (2**30, "1 GiB"),
        (2**44, "16 TiB"),
    ],
)
def test_sizes_are_for_people(num_bytes: int, said: str) -> None:
    assert disk_space.size(num_bytes) == said
