"""The tools of an MCP server. One that is started here runs for one episode, so nothing of it is left to the next."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from olmorl.errors import first_cause
from olmorl.verifiers.box.tool import ReportedError

if TYPE_CHECKING:
    from mcp import Client, StdioServerParameters
    from mcp.types import CallToolResult, Tool

_LAST_WORDS = 300
"""Bytes of its standard error that the error about a server ends with."""


class McpServer:
    """An error that a tool reports is its result. A server that ends, or never begins, is an outage."""

    def __init__(self, server: StdioServerParameters | str) -> None:
        """`server`: the command that starts it, or the URL of one that runs."""
        self.tools: dict[str, McpTool] = {}
        self._server = server
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._closing = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and list the tools. Raises ConnectionError with the cause."""
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(opened))
        try:
            client = await opened
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                self.tools |= {tool.name: McpTool(tool, partial(self._call, client)) for tool in page.tools}
                cursor = page.next_cursor
                if cursor is None:
                    return
        except Exception as error:
            raise self._ended(error) from None

    async def close(self) -> None:
        """End a server that was started here."""
        self._closing.set()
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._errors.close()

    async def _serve(self, opened: asyncio.Future[Client]) -> None:
        """Hold the connection, which the task that opened it has to close."""
        from mcp import Client, stdio_client

        place = self._server if isinstance(self._server, str) else stdio_client(self._server, self._errors)
        try:
            async with Client(place) as client:
                opened.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(first_cause(error))

    async def _call(self, client: Client, name: str, arguments: dict[str, Any]) -> CallToolResult:
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS

        try:
            return await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ValueError(error.message) from None
            raise self._ended(error) from None

    def _ended(self, error: Exception) -> ConnectionError:
        descriptor = self._errors.fileno()
        size = os.fstat(descriptor).st_size
        words = os.pread(descriptor, _LAST_WORDS, max(size - _LAST_WORDS, 0)).decode(errors="replace")
        return ConnectionError(f"the MCP server gave no answer: {error}; it last wrote: {words.strip() or 'nothing'}")


class McpTool:
    """A tool, called with the arguments that the policy gave."""

    def __init__(self, tool: Tool, call: Callable[[str, dict[str, Any]], Any]) -> None:
        described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
        self.schema = {"type": "function", "function": described}
        self._name = tool.name
        self._call = call

    async def __call__(self, /, **arguments: Any) -> str:
        """The texts of the result."""
        result = await self._call(self._name, arguments)
        text = "\n".join(getattr(block, "text", f"({block.type})") for block in result.content)
        return ReportedError(text) if result.is_error else text


def maker(place: str) -> Callable[[], McpServer]:
    """Makes the server of a command, or the connection to a URL. Raises ImportError without the library."""
    try:
        from mcp import StdioServerParameters
    except ImportError as error:
        raise ImportError(f"{error}: pip install mcp") from None
    if place.startswith(("http://", "https://")):
        return partial(McpServer, place)
    command, *args = shlex.split(place)
    return partial(McpServer, StdioServerParameters(command=command, args=args))
