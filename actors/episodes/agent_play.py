"""What an actor needs for episodes that a command of the user plays: an agent that asks the policy over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from olmorl.ports import Renderer


class AgentPlay(NamedTuple):
    """The command, and the bounds of its episodes."""

    command: str
    """For `/bin/sh`."""
    renderer: Callable[[Sequence[dict[str, Any]]], Renderer]
    """Gives the renderer of a prompt with these tools. Raises ConfigError or ModelError if they cannot be written or
    their calls cannot be read."""
    tool_role: str
    """Role of a tool's result in the chat template."""
    timeout_s: float
    """Longest time between two requests."""
    max_turns: int
    max_sequence: int
    """Longest prompt and answer together, in tokens."""
    max_cache_age: int
    """Versions after which the keys of an episode's earlier turns are computed again."""
    host: str = "127.0.0.1"
    """Address at which the policy is served; 0.0.0.0: at all of this host."""
