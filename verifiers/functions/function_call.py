"""The data that a user reward function receives and returns, including the extra arguments that TRL offers."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec

MOST_NAMES = 32
"""The most different names that a function may log, for metrics and for columns."""
LONGEST_NAME = 64
LONGEST_TEXT = 1000
"""The most characters of a value in a logged column."""


class FunctionCall(msgspec.Struct, frozen=True):
    """The input of one function for one group."""

    spec: str
    prompt: Any
    """The conversation of the row: a text, or a list of turns."""
    texts: list[str]
    columns: dict[str, Any]
    turns: list[list[dict[str, Any]]] | None
    """The messages of each episode. None: the completions are single answers."""
    token_ids: list[bytes] | None
    """Little-endian int32, including the end-of-sequence token. None if the completions are only text."""
    step: int
    """The newest policy version that generated a token of the group."""
    max_steps: int


class FunctionResult(msgspec.Struct, frozen=True):
    """The rewards and logged values of one function call."""

    rewards: list[float | list[float | None] | None]
    """For each completion one, or a list with one for each of its tokens."""
    logged: dict[str, float] = {}
    """For each name, the mean of the logged values of the group."""
    extra: dict[str, list[Any]] = {}
    """For each column, one value per completion."""


class TrainerState:
    """The progress of training when the group was generated, with the attribute names of TRL."""

    def __init__(self, global_step: int, max_steps: int) -> None:
        """`global_step` is the step of the newest policy that generated a part of the group, out of `max_steps`."""
        self.global_step = global_step
        self.max_steps = max_steps

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state has no {name}; it has only global_step and max_steps")


class FunctionLog:
    """Collects the values that a function logs in one call. The number and length of names are bounded."""

    def __init__(self, size: int, known: set[str]) -> None:
        """`size` is the group size. `known` holds the names that the function has logged so far; it grows."""
        self._size = size
        self._known = known
        self._values: dict[str, list[float]] = {}
        self.columns: dict[str, list[Any]] = {}

    def metric(self, name: str, value: Any) -> None:
        """Log a number about the group. A number that is not finite is dropped.

        Raises:
            ValueError: a name is too long, or there are too many names.
        """
        self._check("log_metric", name)
        number = float(value)
        if isfinite(number):
            self._values.setdefault(name, []).append(number)

    def extra(self, column: str, values: Iterable[Any]) -> None:
        """Log one value per completion, for the rollout log.

        Raises:
            ValueError: a name is too long, there are too many names, or the number of values is wrong.
        """
        self._check("log_extra", column)
        plain = [_plain(value) for value in values]
        if len(plain) != self._size:
            raise ValueError(f"log_extra: {column} has {len(plain)} values for {self._size} completions")
        self.columns[column] = plain

    def means(self) -> dict[str, float]:
        """For each name logged with `metric`, the mean of its values."""
        return {name: sum(values) / len(values) for name, values in self._values.items()}

    def _check(self, what: str, name: str) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"{what}: a name has 1 to {LONGEST_NAME} printable characters, not {str(name)[:80]!r}")
        known = {one for one in self._known if one.startswith(f"{what} ")}
        if f"{what} {name}" not in known and len(known) >= MOST_NAMES:
            raise ValueError(
                f"{what}: {name!r} exceeds the {MOST_NAMES} names that a function may log; use fewer names"
            )
        self._known.add(f"{what} {name}")


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "size", None) == 1:  # a numpy scalar
        value = value.item()
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return str(value)[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
