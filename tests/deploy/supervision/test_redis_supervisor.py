"""The embedded Redis that dies, alone or with its host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.supervision import policies
from olmorl.deploy.supervision.redis_supervisor import RedisSupervisor
from olmorl.errors import HostLost, ProcessLost, RunEnded
from tests.waiting import HANG_S

ACCESS = QueueAccess("redis://first:1", {})
Keeping = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def keeping() -> Keeping:
    """Keeps a server while a block runs; an error that ended it is raised at the end of the block.

    With `ends` the block waits for that error.
    """

    @asynccontextmanager
    async def keep(made: Any, ends: bool = False) -> AsyncIterator[None]:
        made.cluster.answers["redis"] = {"start": ACCESS, "server": (None, "")}
        server = RedisSupervisor(made, object())  # type: ignore[arg-type]
        assert await server.start() == ACCESS
        keeper = asyncio.create_task(server.supervise())
        yield
        await asyncio.wait([keeper], timeout=HANG_S if ends else 1)
        keeper.cancel()
        await asyncio.wait([keeper])
        if not keeper.cancelled() and (error := keeper.exception()):
            raise error

    return keep


async def test_its_host_process_that_dies_alone_is_started_again_as_everybody_knows_it(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made = context()
    async with keeping(made):
        made.cluster.newest("redis").end(ProcessLost("redis died"))
        await until(lambda: made.cluster.names == ["redis", "redis"] and made.cluster.newest("redis").calls)
        await until(lambda: ("start", ACCESS, None) in made.cluster.newest("redis").calls)


async def test_one_that_gives_up_and_one_that_does_not_start_make_way(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made, starts = context(), iter([ProcessLost("redis failed: OSError"), ACCESS])
    async with keeping(made):
        made.cluster.answers["redis"] = {"start": lambda *_: answer(next(starts)), "server": (None, "")}
        made.cluster.newest("redis").end(ProcessLost("redis failed: OSError"))
        await until(lambda: len(made.cluster.started) == 3)
        assert [process.killed for process in made.cluster.started] == [True, True, False]


async def test_a_dead_server_is_in_no_list_until_another_runs(
    context: Any, keeping: Keeping, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "POLL_S", 0.01)
    made, there, trouble = context(), Identity("first", 7), ""

    def listed() -> Any:
        return json.loads((made.settings.run_dir / "processes.json").read_text()).get("redis-server", {}).get("pid")

    async with keeping(made):
        made.cluster.newest("redis").answers["server"] = lambda: (there, trouble)
        await until(lambda: listed() == 7)
        there = None  # type: ignore[assignment]
        await until(lambda: listed() is None)
        assert made.said == []
        there = Identity("first", 8)
        await until(lambda: listed() == 8)
        assert made.said == ["Redis died or hung; it runs again, on its append-only file"]
        trouble = "the disk of runs/demo/redis is full (0 bytes of 1 GiB free)"
        await until(lambda: made.said[1:] == [f"{trouble} (within 120 s)"])
        trouble = "the disk of runs/demo/redis is full (1 byte of 1 GiB free)"
        await asyncio.sleep(0.1)
        trouble = ""
        await until(lambda: made.said[2:] == ["Redis takes writes again"])


def answer(given: QueueAccess | ProcessLost) -> QueueAccess:
    if isinstance(given, ProcessLost):
        raise given
    return given


async def test_with_its_host_the_address_is_lost(context: Any, keeping: Keeping) -> None:
    made = context()
    with pytest.raises(HostLost, match="redis died, and its host is lost"):
        async with keeping(made, ends=True):
            made.cluster.hosts.remove("first")
            made.cluster.newest("redis").end(ProcessLost("redis died"))
    assert made.cluster.names == ["redis"], "it is not tried there again"


async def test_a_place_that_has_moved_says_so(context: Any, keeping: Keeping) -> None:
    made = context()
    with pytest.raises(HostLost, match="was on first"):
        async with keeping(made, ends=True):
            made.cluster.answers["redis"] = {"start": HostLost("the embedded Redis was on first")}
            made.cluster.newest("redis").end(ProcessLost("redis died"))


async def test_one_that_dies_at_once_each_time_ends_the_run(context: Any, keeping: Keeping) -> None:
    made = context(restarts=1)
    with pytest.raises(RunEnded, match="cannot be kept up: no room"):
        async with keeping(made, ends=True):
            made.cluster.answers["redis"] = {"start": ProcessLost("no room")}
            made.cluster.newest("redis").end(ProcessLost("redis died"))
    assert made.cluster.names == ["redis", "redis"]
