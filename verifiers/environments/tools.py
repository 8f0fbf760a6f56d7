"""The tools of a user's environment, and their schemas. An environment with a method `step` has none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from olmorl.verifiers.environments.mcp_server import McpServer

KEY = "episodes.environment"
_NO_TOOLS = ("reset", "reward", "get_reward", "close")


def has_step(environment: Any) -> bool:
    """Whether an environment reads the answers itself."""
    return callable(getattr(environment, "step", None))


def tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """The tools of an environment by name: its public methods, or the functions in a list."""
    if has_step(environment):
        return {}
    if isinstance(environment, McpServer):
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
