"""Runs the user's environment in its own worker process. The worker is lent for one episode at a time.

An environment is an object with `step(reply)`, and if it wants with `reset(**row)`, `reward()` and `close()`. Each may
be async. `step` gets the answer as a message and returns what the policy reads next: a text, a message, a list of
messages, or None when the episode is over. `reset` may return the conversation to begin with in the same forms.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from olmorl.extension import load_function

KEY = "episodes.environment"
Messages = list[dict[str, Any]]


class _Worker:
    """The state of this process: the factory, and the environment of the episode under way."""

    factory: Callable[[], Any]
    environment: Any = None
    loop: asyncio.AbstractEventLoop | None = None


def load(name: str) -> None:
    """Import the factory. Raises ConfigError."""
    _Worker.factory = load_function(KEY, name)


def reset(row: Mapping[str, Any]) -> Messages | None:
    """Make the environment of an episode. Returns the conversation that it begins with, or None for that of the row."""
    _Worker.environment = environment = _Worker.factory()
    if not callable(getattr(environment, "step", None)):
        raise TypeError(f"{KEY}: a {type(environment).__name__} has no method step(reply)")
    found = _call(environment.reset, **row) if hasattr(environment, "reset") else None
    return None if found is None else _messages(found)


def step(reply: Mapping[str, Any]) -> Messages | None:
    """What the policy reads next; None if the episode is over."""
    found = _call(_Worker.environment.step, dict(reply))
    return None if found is None else _messages(found)


def reward(_: None) -> float | None:
    """The reward of the episode, if the environment gives one."""
    own = getattr(_Worker.environment, "reward", None)
    found = _call(own) if callable(own) else None
    return None if found is None else float(found)


def close(_: None) -> None:
    """End the episode."""
    environment, _Worker.environment = _Worker.environment, None
    own = getattr(environment, "close", None)
    if callable(own):
        _call(own)


def _call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function of the user, and wait for it if it is async."""
    found = function(*args, **named)
    if not inspect.isawaitable(found):
        return found
    _Worker.loop = _Worker.loop or asyncio.new_event_loop()
    return _Worker.loop.run_until_complete(_awaited(found))


async def _awaited(found: Any) -> Any:
    return await found


def _messages(found: Any) -> Messages:
    """The messages in the forms that `step` may return. Raises TypeError for any other."""
    several = found if isinstance(found, list | tuple) else [found]
    made = [{"role": "user", "content": one} if isinstance(one, str) else one for one in several]
    if not made or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in made):
        raise TypeError(f"an environment replies with a text, messages or None, not with {str(found)[:80]!r}")
    return made
