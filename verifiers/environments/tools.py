"""The tools of a user's environment, their schemas and counts. An environment with a method `step` has none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from olmorl.metrics import MOST_LABEL_VALUES
from olmorl.verifiers.box.box import Box
from olmorl.verifiers.environments.mcp_server import McpServer

KEY = "episodes.environment"
_NO_TOOLS = ("reset", "reward", "get_reward", "close")
UNKNOWN = "unknown"
"""Stands for the tools that the policy has invented."""
OTHER = "other"
"""Stands for the tools beyond the first ones."""


class CountedCall(NamedTuple):
    """One call of a tool."""

    tool: str
    seconds: float
    is_error: bool
    """Its result was an error, or there was none."""


class ToolCounts:
    """Counts calls, errors and seconds by tool, of a bounded number of tools."""

    def __init__(self) -> None:
        self._tools: dict[str, list[float]] = {}

    def add(self, calls: Iterable[CountedCall]) -> None:
        """Count calls."""
        for tool, seconds, is_error in calls:
            known = tool in self._tools or len(self._tools) < MOST_LABEL_VALUES - 1
            counts = self._tools.setdefault(tool if known else OTHER, [0.0, 0.0, 0.0])
            for place, value in enumerate((1.0, float(is_error), seconds)):
                counts[place] += value

    def counts(self) -> dict[str, float]:
        """Totals by name, such as `tool_calls.search`."""
        names = ("tool_calls", "tool_errors", "tool_s")
        return {
            f"{name}.{tool}": value
            for tool, values in self._tools.items()
            for name, value in zip(names, values, strict=True)
        }


def has_step(environment: Any) -> bool:
    """Whether an environment reads the answers itself."""
    return callable(getattr(environment, "step", None))


def tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """The tools of an environment by name: its public methods, or the functions in a list."""
    if has_step(environment):
        return {}
    if isinstance(environment, McpServer | Box):
        return dict(environment.tools)
    if isinstance(environment, list):
        return {tool.__name__: tool for tool in environment}
    names = [name for name in dir(environment) if not name.startswith("_") and name not in _NO_TOOLS]
    found = {name: getattr(environment, name) for name in names}
    return {name: tool for name, tool in found.items() if inspect.ismethod(tool)}


def schemas_of(environment: Any) -> list[dict[str, Any]]:
    """The schemas of the tools, as chat templates show them. Raises for a tool without type hints or docstring."""
    if not (tools := tools_of(environment)):
        return []
    if isinstance(environment, McpServer):
        return [tool.schema for tool in environment.tools.values()]
    from transformers.utils import get_json_schema

    return [get_json_schema(tool) for tool in tools.values()]
