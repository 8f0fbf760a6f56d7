"""Decides how much may be in flight, how old a token is, and which groups a step takes.

A step that trains version v on a token of version u has lag v - u. Step s trains version s - 1, so the lag of a group
depends only on the step that takes it. A batch can be chosen while the previous step still trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from olmorl.errors import RunEnded
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import ActorStatus, Completion, Group, TokenIds, Version
from olmorl.ports import Taken


def draws_allowed(*, live: int, published: int, done: int, to_finish: int, batch: int, ahead: int) -> int:
    """How many prompts may be drawn now.

    Together with the `live` prompts they fill at most `ahead` batches after the one that trains the `published`
    version, and are no more than the `to_finish` prompts that the rest of the run needs. `done` steps have trained
    `batch` groups each.
    """
    within_lag = (published + ahead + 1 - done) * batch
    return max(0, min(within_lag, to_finish) - live)


def survives(version: Version, starts: Sequence[Start]) -> bool:
    """Whether a version is part of the surviving history: no later start went back before it.

    A start makes the versions that it replays from the journal again from the same groups, so they survive.
    """
    return all(version.number <= start.replay_to for start in starts if start.incarnation > version.incarnation)


def deadline(group: Group, max_lag: int, starts: Sequence[Start]) -> int:
    """The last version that a group can train without a token older than `max_lag`; -1 if there is none."""
    versions = {span.version for completion in group.completions for span in completion.spans}
    if not all(survives(version, starts) for version in versions):
        return -1
    return min(version.number for version in versions) + max_lag


def token_lags(completion: Completion, trained: int, max_lag: int, starts: Sequence[Start]) -> TokenIds:
    """Lag of each token (T) for a step that trains version `trained`; `max_lag + 1` for tokens of discarded versions.

    Raises:
        RunEnded: a token that is newer than the version it would train.
    """
    lags_T = np.empty(len(completion.token_ids), np.int32)
    for span in completion.spans:
        lag = trained - span.version.number if survives(span.version, starts) else max_lag + 1
        if lag < 0:
            raise RunEnded(f"tokens of version {span.version} arrived for a step that trains version {trained}")
        lags_T[span.start : span.end] = lag
    return lags_T


class Deadline(NamedTuple):
    """How long a finished group can wait. The natural order is the order in which steps take groups."""

    last_version: int
    """The newest version that the group can train."""
    arrival: int
    draw_id: int


def choose(ready: Iterable[Deadline], unfinished: Iterable[int], version: int, batch: int) -> list[Deadline] | None:
    """The groups that train `version`, in the order of their draws; None to wait for more.

    Takes the earliest deadlines first, then the earliest arrivals: if any choice lets all other groups meet their
    deadlines, this one does. `unfinished` are the deadlines of draws that are still being generated. While this choice
    would make one of them late, the answer is to wait: no group is trained late, and none is thrown away.
    """
    ordered = sorted(ready)
    if len(ordered) < batch:
        return None
    chosen, rest = ordered[:batch], ordered[batch:]
    if _squeezed(Counter(unfinished), Counter(group.last_version for group in rest), version, batch):
        return None
    return sorted(chosen, key=lambda group: group.draw_id)


def _squeezed(unfinished: Counter[int], finished: Counter[int], version: int, batch: int) -> bool:
    """Whether the steps after `version` are too few for the groups due by some version, one of them unfinished."""
    due = waited_for = 0
    for last in sorted(unfinished.keys() | finished.keys()):
        due += unfinished[last] + finished[last]
        waited_for += unfinished[last]
        if waited_for and due > max(last - version, 0) * batch:
            return True
    return False


class ReadyGroups:
    """Finished groups that wait for a step. Each is still among the queue's results, so a crash loses none."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Deadline, Taken, Group]] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, draw_id: int) -> bool:
        return draw_id in self._groups

    def add(self, taken: Taken, group: Group, deadline: int) -> None:
        """Add a group that can train any version up to `deadline`."""
        self._groups[taken.draw_id] = (Deadline(deadline, next(self._arrivals), taken.draw_id), taken, group)

    def past(self, version: int) -> list[tuple[Taken, Group]]:
        """The groups whose deadline is before `version`."""
        return [(taken, group) for key, taken, group in self._groups.values() if key.last_version < version]

    def take(self, unfinished: Iterable[int], version: int, batch: int) -> list[tuple[Taken, Group]] | None:
        """Remove and return the groups that train `version`, in the order of their draws; None to wait for more."""
        chosen = choose((key for key, _, _ in self._groups.values()), unfinished, version, batch)
        return None if chosen is None else [self.remove(key.draw_id) for key in chosen]

    def remove(self, draw_id: int) -> tuple[Taken, Group]:
        """Remove and return one group."""
        _, taken, group = self._groups.pop(draw_id)
        return taken, group

    def clear(self) -> list[tuple[Taken, Group]]:
        """Remove and return all groups."""
        return [self.remove(draw_id) for draw_id in list(self._groups)]


class OldestVersions:
    """No token of an open draw is older than the version that `of` gives. A draw in the queue has no tokens yet."""

    def __init__(self) -> None:
        self._oldest: dict[int, int] = {}
        self._uncertain: set[int] = set()

    def forget(self, open_draws: Iterable[int]) -> None:
        """Forget these draws: after lost writes the queue may not know that an actor began them."""
        self._oldest, self._uncertain = {}, set(open_draws)

    def not_begun(self, draws: Iterable[int], version: int, open_draws: Container[int]) -> None:
        """Note that no actor has begun these draws, and that no engine will begin them with an older version."""
        self._oldest = {draw: oldest for draw, oldest in self._oldest.items() if draw in open_draws}
        self._uncertain = {draw for draw in self._uncertain if draw in open_draws}
        for draw in set(draws) - self._uncertain:
            self._oldest[draw] = max(version, self._oldest.get(draw, version))

    def of(self, draw: int, drawn_for: int) -> int:
        """The oldest version that a token of the draw can have; `drawn_for` was the newest one at the draw."""
        return max(drawn_for, self._oldest.get(draw, drawn_for))


def slowest_engine(statuses: Iterable[ActorStatus], incarnation: int) -> int | None:
    """The oldest version that an engine runs; None if it is not known.

    It is not known while an actor starts, or while an engine runs a version of an earlier start of the learner: then it
    may go back to an older one. Otherwise engines only go forward, so an old heartbeat is a lower bound.
    """
    versions = [status.version for status in statuses]
    if not versions or any(version is None or version.incarnation != incarnation for version in versions):
        return None
    return min(version.number for version in versions if version is not None)
