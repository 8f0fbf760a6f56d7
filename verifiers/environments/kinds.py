"""Makes environments of every kind: the user's own, those of Gymnasium, and the tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from olmorl.extension import load_function
from olmorl.verifiers.environments import gymnasium_environment
from olmorl.verifiers.environments.gymnasium_environment import GymnasiumEnvironment
from olmorl.verifiers.environments.tools import KEY


def factory_of(name: str) -> Callable[[], Any]:
    """What makes the objects of a value of `episodes.environment`. Raises ConfigError if it does not import."""
    kind, _, rest = name.partition(":")
    if kind == "gymnasium":
        return partial(gymnasium_environment.make, rest)
    return load_function(KEY, name)


def environment_of(made: Any, think_tags: tuple[str, str]) -> Any:
    """An object with `step` or with tools. Raises TypeError for one of Gymnasium that is no text."""
    return GymnasiumEnvironment(made, think_tags) if gymnasium_environment.is_environment(made) else made
