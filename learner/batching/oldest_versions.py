"""Bounds the age of the tokens of unfinished draws. A draw in the queue has no tokens, so it does not age."""

from __future__ import annotations

from collections.abc import Container, Iterable

from olmorl.messages import ActorStatus


class OldestVersions:
    """No token of an open draw is older than the version that `of` gives."""

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
