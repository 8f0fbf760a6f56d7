"""Makes environments of every kind: the user's own, those of Gymnasium, and the tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from olmorl.extension import load_function
from olmorl.verifiers.environments import gymnasium_environment, mcp_server
from olmorl.verifiers.environments.gymnasium_environment import GymnasiumEnvironment
from olmorl.verifiers.environments.mcp_server import McpServer
from olmorl.verifiers.environments.tools import KEY

_MAKERS = {"gymnasium": gymnasium_environment.maker, "mcp": mcp_server.maker}


def factory_of(name: str) -> Callable[[], Any]:
    """What makes the objects of a value of `episodes.environment`. Raises ConfigError if it does not import."""
    kind, _, rest = name.partition(":")
    maker = _MAKERS.get(kind)
    return load_function(KEY, name) if maker is None else maker(rest)


def environment_of(made: Any, think_tags: tuple[str, str]) -> Any:
    """An object with `step` or with tools. Raises TypeError for one of Gymnasium that is no text."""
    if gymnasium_environment.is_environment(made):
        return GymnasiumEnvironment(made, think_tags)
    return McpServer(made) if type(made).__name__ == "StdioServerParameters" else made
