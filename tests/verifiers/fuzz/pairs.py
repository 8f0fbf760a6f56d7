"""A label and an answer with their truth, which is known by construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple


class Made(NamedTuple):
    """What a family makes for one draw."""

    rewriting: str
    """How the answer comes from the label."""
    label: str
    answer: str
    sentence: bool = False
    """The answer is a whole completion; others are put into a box."""


class Pair(NamedTuple):
    """A label and an answer."""

    family: str
    rewriting: str
    label: str
    answer: str
    truth: bool
    sentence: bool = False

    @property
    def completion(self) -> str:
        return self.answer if self.sentence else rf"\boxed{{{self.answer}}}"


Maker = Callable[[Random, bool], Made | None]
"""Makes an equal pair for True and an unequal one for False; None where a draw does not serve."""
Families = Mapping[str, Maker]
