"""The outcomes of a check in a worker process, and their counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Done(NamedTuple):
    """The check returned a value."""

    value: Any


class Limit(NamedTuple):
    """The input exceeded a limit twice on a healthy worker: `timeout`, `memory` or `crash`."""

    kind: str


class Failed(NamedTuple):
    """The check failed for a reason other than its input. It gives no reward."""

    error_kind: str
    """A short stable word for metrics."""
    detail: str
    """One line for the user."""


Outcome = Done | Limit | Failed


class WorkerProbe(NamedTuple):
    """A check that returns `value` on every healthy worker."""

    task: str
    args: Any
    value: Any


@dataclass
class Counters:
    """The work of a pool since its start."""

    checks: int = 0
    seconds: float = 0.0
    """Seconds in workers, including retries."""
    kills: int = 0
    """Workers killed because they missed a deadline."""
    starts: int = 0
    """Workers started."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Checks by outcome: `done`, `limit`, or an error kind."""

    def add(self, outcome: Outcome, seconds: float) -> None:
        self.checks += 1
        self.seconds += seconds
        self.outcomes[outcome.error_kind if isinstance(outcome, Failed) else type(outcome).__name__.lower()] += 1


def numbers(counters: Any) -> dict[str, float]:
    """The numbers of a dataclass by field name. A mapping gives one number per key, as `name.key`."""
    found: dict[str, float] = {}
    for one in fields(counters):
        value = getattr(counters, one.name)
        if isinstance(value, Mapping):
            found |= {f"{one.name}.{key}": number for key, number in value.items()}
        else:
            found[one.name] = float(value) if isinstance(value, bool) else value
    return found
