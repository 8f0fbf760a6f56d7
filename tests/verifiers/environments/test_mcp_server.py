"""The tools of MCP servers as episodes: what they list, their results and errors, and servers that end or hang."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.config import Episodes, Verifiers
from olmorl.errors import ConfigError, EnvironmentFailed
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from tests.verifiers.environments.test_forked_environments import calls, episode, prompt
from tests.waiting import until

Open = Callable[..., Any]
SERVER = """
import os, sys, time

from mcp.server import MCPServer

server = MCPServer("counter", log_level="CRITICAL")
total = 0


@server.tool(description=os.environ.get("ABOUT", "Adds to the total."))
def add(number: int) -> str:
    global total
    if number < 0:
        raise ValueError("a negative number")
    if number == 99:
        print("the disk is gone", file=sys.stderr, flush=True)
        os._exit(3)
    if number == 98:
        time.sleep(60)
    total += number
    return f"total {total}"


if sys.argv[1:]:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER)
    return f"mcp:{sys.executable} {tmp_path}/server.py"


@asynccontextmanager
async def opened(command: str) -> AsyncIterator[ForkedEnvironments]:
    environments = ForkedEnvironments(Episodes(environment=command), Verifiers())
    await environments.start()
    try:
        yield environments
    finally:
        await environments.stop()
        until(lambda: not servers(command))


def servers(command: str) -> list[psutil.Process]:
    """The servers that run."""
    script = command.rpartition(" ")[2]
    return [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [""])[-1] == script]


def test_the_tools_are_those_that_the_server_lists(command: str) -> None:
    (schema,) = schemas(Episodes(environment=command))
    assert (schema["type"], schema["function"]["name"]) == ("function", "add")
    assert schema["function"]["description"] == "Adds to the total."
    assert schema["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    until(lambda: not servers(command))


async def test_each_episode_has_its_own_server_and_errors_of_a_tool_are_messages(command: str) -> None:
    async with opened(command) as environments:
        for _ in range(2):
            world = environments.open()
            assert await world.reset(prompt(), 0) is None and len(servers(command)) == 1
            given = [{"number": 3}, {"number": "x"}, {"number": -1}, {}, {"number": 4}]
            step = await world.step(calls(*(("add", arguments) for arguments in given), ("take", {})))
            first, no_number, negative, nothing, last, unknown = (one["content"] for one in step.messages)
            assert (first, last) == ("total 3", "total 7"), "a new server begins at 0"
            assert "valid integer" in no_number and "Error executing tool add" in negative
            assert "Field required" in nothing and unknown == "Error: no tool 'take'; there are add"
            assert (await world.step({"role": "assistant", "content": "7"})).done
            assert await world.reward(episode()) == {}
            await world.close()
            assert not servers(command)
        counts = environments.counts()
        assert (counts["tool_calls.add"], counts["tool_errors.add"]) == (2 * 5, 2 * 3), "those that the server says"
        assert counts["tool_errors.unknown"] == 2


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (99, "the MCP server gave no answer: Connection closed; it last wrote: the disk is gone"),
        (98, "step took longer than episodes.timeout_s = 1"),
    ],
)
async def test_a_server_that_ends_or_hangs_is_an_outage_with_a_cause(command: str, number: int, cause: str) -> None:
    async with opened(command) as environments:
        world = environments.open()
        await world.reset(prompt(), 0)
        environments._timeout_s = 1.0 if number == 98 else 60.0
        with pytest.raises(EnvironmentFailed, match=cause):
            await world.step(calls(("add", {"number": number})))
        await world.close()
        environments._timeout_s = 60.0
        again = environments.open()
        await again.reset(prompt(), 0)
        assert (await again.step(calls(("add", {"number": 1})))).messages[0]["content"] == "total 1"
        await again.close()


@pytest.fixture
def url(command: str) -> Iterator[str]:
    """A server that runs, and listens to HTTP."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    process = subprocess.Popen([*command.removeprefix("mcp:").split(), str(port)])
    try:
        until(lambda: _answers(port))
        yield f"mcp:http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0


async def test_a_server_that_runs_serves_all_episodes(url: str) -> None:
    async with opened(url) as environments:
        for total in (3, 6):
            world = environments.open()
            await world.reset(prompt(), 0)
            assert (await world.step(calls(("add", {"number": 3})))).messages[0]["content"] == f"total {total}"
            await world.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mcp:/nowhere/server", "cannot be made: ConnectionError: .*No such file or directory: '/nowhere/server'"),
        (f"mcp:{sys.executable} -c 'raise SystemExit(\"no door\")'", "cannot be made: .*it last wrote: no door"),
        ("mcp:http://127.0.0.1:9/mcp", "cannot be made: ConnectionError"),
    ],
)
def test_a_server_that_does_not_start_is_named(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        schemas(Episodes(environment=name))


def test_a_function_gives_a_server_its_environment_variables(command: str, tmp_path: Path) -> None:
    (tmp_path / "place.py").write_text(
        "import sys\nfrom mcp import StdioServerParameters\ndef server():\n    return StdioServerParameters("
        f"command=sys.executable, args=['{tmp_path}/server.py'], env={{'ABOUT': 'Adds.'}})\n"
    )
    (schema,) = schemas(Episodes(environment=f"{tmp_path}/place.py:server"))
    assert schema["function"]["description"] == "Adds."
