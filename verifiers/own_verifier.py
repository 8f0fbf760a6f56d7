"""Verifiers of the user's own by name: `verifiers.own` names a function, and rows name the verifier in `dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from olmorl.extension import load_function
from olmorl.messages import Verdict
from olmorl.verifiers.check_outcomes import Done
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

KEY = "verifiers.own"
SCORE, LOAD = f"{__name__}:score", f"{__name__}:load"
"""The tasks of a worker."""


class OwnCheck(Protocol):
    """A function of the user's own. It runs in a worker, with the deadline and the memory limit of every check."""

    def __call__(self, answer: str, label: Any, /) -> float:
        """Returns the reward of an answer, without its thinking, from 0 to 1. What it raises fails the group."""
        ...


class OwnVerifier(AnswerVerifier):
    """Scores by an `OwnCheck`. Any label is usable: the function is the first to read it."""

    def __init__(self, pool: Pool, place: str) -> None:
        self._pool = pool
        self._place = place

    async def verify(self, text: str, label: Any) -> Verdict:
        outcome = await self._pool.run(SCORE, (self._place, text, label))
        if not isinstance(outcome, Done):
            return unscored(outcome)
        return Verdict(reward=outcome.value, method="own")

    def usable(self, label: Any) -> bool:
        return True

    async def problem(self, label: Any) -> str | None:
        return None


def score(args: tuple[str, str, Any]) -> float:
    """The reward that the function of the first argument gives. A task of a worker."""
    place, text, label = args
    check: OwnCheck = load_function(KEY, place)
    reward = check(text, label)
    if isinstance(reward, list | tuple):
        raise TypeError("it gives one reward an answer, whose tokens it does not see; see verifiers.functions for more")
    return float(reward)


def load(own: Mapping[str, str]) -> None:
    """Imports the functions, so that no check pays for it. The setup of a worker."""
    for place in own.values():
        load_function(KEY, place)
