"""The built-in tools as an environment: `box:python,bash,search=docs.jsonl,submit`.

A row may name in its column `tools` those of the recipe that it has. Reward functions find each tool under its name in
the live environment: `environments[0].bash`, and what was given to `submit` in `environments[0].submitted`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from olmorl.config import Verifiers, box_tools
from olmorl.errors import ConfigError
from olmorl.verifiers.box import bash_tool
from olmorl.verifiers.box.submit_tool import Submit
from olmorl.verifiers.box.tool import Tool, ToolSettings
from olmorl.verifiers.code.sandbox import self_test
from olmorl.verifiers.pool.worker import resolve


class Box:
    """The tools of one episode. `close` ends everything that they started."""

    def __init__(self, tools: Mapping[str, Tool], settings: ToolSettings) -> None:
        self._made = tools
        self._settings = settings
        self._started: list[Tool] = []
        self.tools = _methods(tools)
        """What the policy may call, by name."""
        for name, tool in tools.items():
            setattr(self, name, tool)

    async def reset(self, tools: list[str] | None = None, **row: Any) -> None:
        """Start the tools of a row; `tools` names them, by default all."""
        chosen = {name: tool for name, tool in self._made.items() if tools is None or name in tools}
        self.tools = _methods(chosen)
        for tool in chosen.values():
            self._started.append(tool)
            await _awaited(tool.start(row))

    def begin_answer(self) -> None:
        """The calls of an answer begin: they share the time of a `step`."""
        self._settings.time.begin()

    @property
    def submitted(self) -> str | None:
        """What the policy gave to `submit`. The episode is then over."""
        tool = self._made["submit"] if "submit" in self.tools else None
        return tool.answer if isinstance(tool, Submit) else None

    async def close(self) -> None:
        while self._started:
            await _awaited(self._started.pop().close())


def _methods(tools: Mapping[str, Tool]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(tool, name) for name, tool in tools.items()}


async def _awaited(found: Any) -> None:
    if inspect.isawaitable(found):
        await found


async def check(environment: str, verifiers: Verifiers) -> None:
    """Try the sandbox of the tools that run programs, once for all processes. Raises ConfigError if it fails."""
    tools = box_tools(environment)
    if "python" in tools and (reason := await self_test.refusal(verifiers)):
        raise ConfigError(f"verifiers.code_tier = {verifiers.code_tier}: {reason}")
    if "bash" in tools and (reason := await asyncio.to_thread(bash_tool.refusal, verifiers)):
        raise ConfigError(f"episodes.environment = {environment!r}: {reason}")


def maker(environment: str, settings: ToolSettings) -> Callable[[], Box]:
    """Makes the boxes of a value of `episodes.environment`. Their tools are made now, once for all episodes."""
    tools: dict[str, Tool] = {
        name: resolve(f"{__package__}.{name}_tool:{name.capitalize()}")(argument, settings)
        for name, argument in box_tools(environment).items()
    }
    return partial(Box, tools, settings)
