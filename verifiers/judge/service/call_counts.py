"""The counters of calls to a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from olmorl.verifiers.check_outcomes import Failed, Outcome


@dataclass
class CallCounts:
    """The calls of a client since its start."""

    calls: int = 0
    """Requests sent."""
    seconds: float = 0.0
    """Seconds in requests."""
    retries: int = 0
    """Requests sent again after a failure."""
    openings: int = 0
    """How often the circuit breaker opened."""
    breaker_open: bool = False
    """Whether the circuit breaker is open."""
    cache_hits: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Answers by outcome: `done`, `limit`, or an error kind."""

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.error_kind if isinstance(outcome, Failed) else type(outcome).__name__.lower()] += 1
