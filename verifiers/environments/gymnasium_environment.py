"""Plays an environment of Gymnasium as text: the observation is what the policy reads, its answer is the action."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from olmorl.verifiers.math.extraction import strip_thinking


class GymnasiumEnvironment:
    """One episode. Its reward is the sum of the rewards of all steps."""

    def __init__(self, environment: Any, think_tags: tuple[str, str]) -> None:
        """Raises TypeError if its observations are no texts or its actions cannot be read from one."""
        from gymnasium.spaces import Discrete, Text

        self._environment = environment
        self._tags = think_tags
        self._draws = environment.render_mode == "ansi"
        self._is_number = isinstance(environment.action_space, Discrete)
        self._opened = False
        self._total = 0.0
        self.truncated = False
        if not self._draws and not isinstance(environment.observation_space, Text):
            raise TypeError(
                f"its observations are {environment.observation_space}, and neither Text nor drawn as text "
                '(render_mode="ansi"): wrap it in a gymnasium.ObservationWrapper'
            )
        if not self._is_number and not isinstance(environment.action_space, Text):
            raise TypeError(
                f"its actions are {environment.action_space}, and neither Text nor Discrete: wrap it in a "
                "gymnasium.ActionWrapper"
            )

    def reset(self, seed: int, options: dict[str, Any] | None, thinking_opened: bool) -> str:
        """Begin, and return the first observation. `thinking_opened`: prompts end with the tag that opens thinking."""
        self._opened = thinking_opened
        observation, _ = self._environment.reset(seed=seed, options=options)
        return self._text(observation)

    def step(self, reply: Mapping[str, Any]) -> str | None:
        """An answer that is no action reaches the policy as an error, and not the environment."""
        text = strip_thinking(reply["content"], *self._tags, self._opened)
        action = None if text is None else self._action(text.strip())
        if action is None:
            return f"Error: this is no action of {str(self._environment.action_space)[:80]}"
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self._total += float(reward)
        self.truncated = truncated and not terminated  # the end may be reached in the last step that is allowed
        return None if terminated or truncated else self._text(observation)

    def reward(self) -> float:
        return self._total

    def close(self) -> None:
        self._environment.close()

    def _action(self, text: str) -> Any:
        """The text, or its last number where actions are numbers; None if that is no action."""
        space = self._environment.action_space
        numbers = re.findall(r"(?<!\w)-?\d+", text)
        action = (int(numbers[-1]) if numbers else None) if self._is_number else text
        return action if action is not None and space.contains(action) else None

    def _text(self, observation: Any) -> str:
        return str(self._environment.render() if self._draws else observation)


def maker(name: str) -> Callable[[], Any]:
    """Makes a registered environment by its ID, or by `module:ID`. Raises ImportError without the library."""
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error}: pip install gymnasium") from None
    return partial(_make, name)


def _make(name: str) -> Any:
    """An environment whose observations are no texts is drawn as text, if it can be."""
    import gymnasium

    made = gymnasium.make(name)
    is_text = isinstance(made.observation_space, gymnasium.spaces.Text)
    if is_text or "ansi" not in made.metadata.get("render_modes", ()):
        return made
    made.close()
    return gymnasium.make(name, render_mode="ansi")


def is_environment(made: Any) -> bool:
    """Whether an object is an environment of Gymnasium, without an import of it."""
    return any(f"{kind.__module__}.{kind.__name__}" == "gymnasium.core.Env" for kind in type(made).__mro__)
