"""Defines a constraint on an answer: its id, its parameters, and the pure function that checks an answer.

A table is a tuple of `Constraint`s. A new constraint is one new row in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Reader = Callable[[Any], Any]
"""Converts a parameter to its exact type. Raises ValueError with the expected form."""


def no_conflict(**_: Any) -> str | None:
    """Accept any combination of parameters."""
    return None


@dataclass(frozen=True)
class Constraint:
    """A deterministic check of an answer, in linear time. A blank answer never satisfies it."""

    id: str
    holds: Callable[..., bool]
    """`holds(answer, **parameters)`. The answer has a letter, no surrounding white space, and a bounded length."""
    readers: Mapping[str, Reader] = field(default_factory=dict)
    """The reader of each parameter, by its published name."""
    conflict: Callable[..., str | None] = no_conflict
    """The reason why a combination of valid parameters is impossible; None if it is possible."""
    wordless: bool = False
    """Whether an answer of digits without letters can satisfy the constraint."""

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters for `holds`. Entries that are None count as missing; entries of other ids are ignored.

        Raises:
            ValueError: a parameter is missing or has the wrong type. There are no defaults.
        """
        bound = {}
        for name, reader in self.readers.items():
            value = given.get(name)
            if value is None:
                raise ValueError(f"{self.id} needs {name}")
            try:
                bound[name] = reader(value)
            except ValueError as error:
                raise ValueError(f"{self.id}: {name} {error}, not {value!r:.80}") from None
        if problem := self.conflict(**bound):
            raise ValueError(f"{self.id}: {problem}")
        return bound


def constraint(
    name: str,
    holds: Callable[..., bool],
    conflict: Callable[..., str | None] = no_conflict,
    wordless: bool = False,
    **readers: Reader,
) -> Constraint:
    """Make one row of a table: the constraint of that id, with its parameters as keywords."""
    return Constraint(name, holds, readers, conflict, wordless)


def whole(value: Any) -> int:
    """A whole number from 0. Parquet may give it as `3.0`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0 or value < 0:
        raise ValueError("must be a whole number from 0")
    return int(value)


def positive(value: Any) -> int:
    """A whole number from 1."""
    if whole(value) == 0:
        raise ValueError("must be a whole number from 1")
    return int(value)


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise ValueError("must be a number")
    return float(value)


def text(value: Any) -> str:
    """Text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text that is not blank")
    return value


def word(value: Any) -> str:
    """Text without surrounding white space. Some labels have it as a list of one text."""
    return text(value[0] if isinstance(value, (list, tuple)) and value else value).strip()


def texts(value: Any) -> tuple[str, ...]:
    """A list of at least one text."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("must be a list of texts that is not empty")
    return tuple(text(item) for item in value)


def one_of(*choices: str) -> Callable[[Any], str]:
    """Make a reader that accepts only the given words."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(repr(choice) for choice in choices)}")
        return str(value)

    return read


relation = one_of("less than", "at least")
"""The comparison words of the IFEval and IFBench sets."""
quantifier = one_of("at least", "around", "at most")
"""The comparison words of labels with `func_name`."""


def meets(count: int, how: str, threshold: int, tolerance: int = 0) -> bool:
    """Whether the count satisfies the comparison.

    Args:
        tolerance: the largest distance from the threshold for `around`.
    """
    if how == "at least":
        return count >= threshold
    if how == "less than":
        return count < threshold
    return count <= threshold if how == "at most" else abs(count - threshold) <= tolerance
