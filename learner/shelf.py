"""Finished groups that wait for a step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from olmorl.learner.admission import Candidate, choose
from olmorl.messages import Group
from olmorl.ports import Taken


class Shelf:
    """Every group on it is still among the queue's results, so a crash loses none."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Candidate, Taken, Group]] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, draw_id: int) -> bool:
        return draw_id in self._held

    def add(self, taken: Taken, group: Group, deadline: int) -> None:
        """Keep a group that can train any version up to `deadline`."""
        candidate = Candidate(deadline, next(self._arrivals), taken.draw_id)
        self._held[taken.draw_id] = (candidate, taken, group)

    def past(self, version: int) -> list[tuple[Taken, Group]]:
        """The groups whose deadline is before `version`."""
        return [(taken, group) for candidate, taken, group in self._held.values() if candidate.deadline < version]

    def take(self, unfinished: Iterable[int], version: int, batch: int) -> list[tuple[Taken, Group]] | None:
        """Remove and return the groups that train `version`, in the order of their draws; None to wait for more."""
        chosen = choose((candidate for candidate, _, _ in self._held.values()), unfinished, version, batch)
        return None if chosen is None else [self.remove(candidate.draw_id) for candidate in chosen]

    def remove(self, draw_id: int) -> tuple[Taken, Group]:
        _, taken, group = self._held.pop(draw_id)
        return taken, group

    def clear(self) -> list[tuple[Taken, Group]]:
        """Remove and return all."""
        return [self.remove(draw_id) for draw_id in list(self._held)]
