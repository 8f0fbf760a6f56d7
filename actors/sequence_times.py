"""Sums the time that an actor's sequences spend in each state, since its engine started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from olmorl.actors.leased_groups import LeasedGroup


@dataclass(slots=True)
class SequenceTimes:
    """Seconds of all sequences in each state, summed over them. A noted state holds until the next note."""

    started_at: float
    """All times are of one monotonic clock, in seconds."""
    slots_s: float = 0.0
    awaiting_weights_s: float = 0.0
    """Leased, and the engine is older than the version that the prompt asks for."""
    awaiting_verdicts_s: float = 0.0
    """Finished by the engine, without their verdicts."""
    awaiting_group_s: float = 0.0
    """Verified, and their group is not stored: they wait for its slowest sequence."""
    awaiting_environment_s: float = 0.0
    """Between two turns of an episode: they wait for its environment or agent."""
    noted_at: float = 0.0
    _slots: int = 0
    _weights: int = 0
    _verdicts: int = 0
    _group: int = 0
    _environment: int = 0

    def __post_init__(self) -> None:
        self.noted_at = self.started_at

    def note(self, now: float, works: Iterable[LeasedGroup], slots: int) -> None:
        """Note the state at time `now`. Call it after each change of the groups.

        Args:
            slots: sequences that the engine can run at the same time.
        """
        seconds, self.noted_at = now - self.noted_at, now
        self.slots_s += seconds * self._slots
        self.awaiting_weights_s += seconds * self._weights
        self.awaiting_verdicts_s += seconds * self._verdicts
        self.awaiting_group_s += seconds * self._group
        self.awaiting_environment_s += seconds * self._environment
        self._slots = slots
        self._weights = self._verdicts = self._group = self._environment = 0
        for work in works:
            if work.version is None:
                self._weights += work.prompt.group_size
            else:
                self._verdicts += work.num_unverified
                self._environment += work.num_waiting
                self._group += work.prompt.group_size - work.num_generating - work.num_unverified

    @property
    def up_s(self) -> float:
        """Time since the engine started, until the last note."""
        return self.noted_at - self.started_at
