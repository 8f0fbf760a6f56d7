"""How much may be in flight, how old a token is, and which groups a step takes. Pure functions.

A step that trains version v on a token of version u has lag v - u. Step s trains version s - 1, so the lag of a group
depends on the step it is chosen for and on nothing else: a batch can be judged while the step before it still trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from olmorl.errors import RunEnded
from olmorl.learner.accounts import Start
from olmorl.messages import Completion, Group, TokenIds, Version


class Candidate(NamedTuple):
    """A finished group that may be trained."""

    deadline: int
    """The last version it can be part of the training of."""
    arrival: int
    draw_id: int


def draws_allowed(*, live: int, published: int, done: int, steps: int, batch: int, ahead: int) -> int:
    """How many prompts may be drawn now.

    With the `live` ones they fill at most `ahead` batches beyond the one that trains the `published` version, and no
    more than the remaining steps need. `done` counts steps, each of which trained `batch` groups.
    """
    within_lag = (published + ahead + 1 - done) * batch - live
    within_run = (steps - done) * batch - live
    return max(0, min(within_lag, within_run))


def survives(version: Version, starts: Sequence[Start]) -> bool:
    """Whether a version is part of the surviving history: no later start went back behind it.

    What a start replays from the journal is made again from the same groups, so its earlier versions survive.
    """
    return all(version.number <= start.replay_to for start in starts if start.incarnation > version.incarnation)


def deadline(group: Group, max_lag: int, starts: Sequence[Start]) -> int:
    """The last version that a group can train without a token older than `max_lag`; -1 if it is over-age for any."""
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


C = TypeVar("C", bound=Candidate)


def choose(ready: Iterable[C], unfinished: Iterable[int], version: int, batch: int) -> list[C] | None:
    """The groups that train `version`, in the order of their draws; None to wait for more.

    Earliest deadline first, then by completion: if any choice lets all others meet their deadlines, this one does.
    `unfinished` are the deadlines of draws that are still generated. While one of those would miss its own because of
    this choice the answer is to wait, so that no group is trained late and none is thrown away.
    """
    ordered = sorted(ready)
    if len(ordered) < batch:
        return None
    chosen, rest = ordered[:batch], ordered[batch:]
    if _squeezed(Counter(unfinished), Counter(candidate.deadline for candidate in rest), version, batch):
        return None
    return sorted(chosen, key=lambda candidate: candidate.draw_id)


def _squeezed(unfinished: Counter[int], finished: Counter[int], version: int, batch: int) -> bool:
    """Whether more than the steps after `version` can train fall due, an unfinished one among them."""
    due = waited_for = 0
    for last in sorted(unfinished.keys() | finished.keys()):
        due += unfinished[last] + finished[last]
        waited_for += unfinished[last]
        if waited_for and due > max(last - version, 0) * batch:
            return True
    return False
