"""The groups that an actor has leased, and the command that it obeys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from olmorl.actors.admission import HeldSequences
from olmorl.messages import TRAIN_LANE, Lease, Prompt, Version


class Order(StrEnum):
    """The commands that an actor obeys. The last two are final."""

    RUN = "run"
    PAUSE = "pause"
    """Lease nothing new, finish the leased groups, wait for the next command."""
    DRAIN = "drain"
    """Lease nothing new, finish the leased groups, leave."""
    STOP = "stop"
    """Give back the leased groups, leave."""

    @property
    def final(self) -> bool:
        return self in (Order.DRAIN, Order.STOP)


@dataclass(eq=False, slots=True)
class LeasedGroup:
    """One leased group; each of its sequences counts as generating until the engine is done with it."""

    lease: Lease
    priority: int = 0
    """Its place among the sequences that wait in the engine, as `place_in_engine` gives it."""
    task: asyncio.Task[None] | None = None
    version: Version | None = None
    """The engine's version when generation began."""
    started_at: float = 0.0
    num_generating: int = 0
    num_unverified: int = 0
    """Sequences that the engine has finished, without verdicts."""
    num_tokens: int = 0
    """Tokens of its finished completions, and of the finished turns of its episodes."""
    num_discarded: int = 0
    """Tokens of episodes that are played again."""
    num_waiting: int = 0
    """Generating sequences that wait for their environment."""
    num_lent: int = 0
    """Those of them that had a turn: others have their slots. One whose environment starts keeps its slot, or all that
    the queue has would start at the same time."""
    stale: bool = False
    """Cancelled by `over_age = "drop"`."""
    committing: bool = False
    stored: bool = False

    def __post_init__(self) -> None:
        self.num_generating = self.prompt.group_size

    @property
    def prompt(self) -> Prompt:
        return self.lease.prompt

    def cancel(self) -> None:
        """Cancel its generation, unless its result is on the way to the queue."""
        if self.task and not self.committing:
            self.task.cancel()

    def count_waiting(self, change: int, lends: bool) -> None:
        """One of its episodes waits (1) or no longer (-1), and not for the engine; `lends`: it had a turn."""
        self.num_waiting += change
        self.num_lent += change * lends

    @contextmanager
    def waiting(self, note_change: Callable[[], None], lends: bool) -> Iterator[None]:
        """One of its episodes waits meanwhile, as in `count_waiting`."""
        self.count_waiting(1, lends)
        note_change()
        try:
            yield
        finally:
            self.count_waiting(-1, lends)
            note_change()

    def discard(self, num_tokens: int) -> None:
        """Count the tokens of an episode that is played again."""
        self.num_tokens -= num_tokens
        self.num_discarded += num_tokens

    def outlived(self, now: Version, max_span: int) -> bool:
        """Whether an unfinished answer spans more than `max_span` versions, counted from the start of its group."""
        return bool(self.version and self.num_generating and now.number - self.version.number > max_span)


def place_in_engine(prompt: Prompt, held: Iterable[LeasedGroup]) -> int:
    """The priority of a prompt: the number of its draw, so that sequences of older draws begin first.

    Evaluation counts its own draws: its prompts come behind the training draws that the actor has, and before later
    ones.
    """
    if prompt.lane == TRAIN_LANE:
        return prompt.draw_id
    return max((work.prompt.draw_id for work in held if work.prompt.lane == TRAIN_LANE), default=0)


def held_sequences(works: Iterable[LeasedGroup]) -> HeldSequences:
    """Count the sequences of all groups."""
    generating = unverified = evaluation = waiting = 0
    for work in works:
        running = work.num_generating - work.num_lent
        generating += running
        unverified += work.num_unverified
        waiting += work.num_lent
        if work.prompt.lane != TRAIN_LANE:
            evaluation += running
    return HeldSequences(generating, unverified, evaluation, waiting)
