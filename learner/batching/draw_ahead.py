"""How many draws must be in flight so that the learner does not wait, and no more: waiting groups grow stale.

A draw made now is finished one draw time later. So only the batches that the learner asks for until then need draws
now. Draw time, step time and the share of groups with a gradient are measured.

This holds while the engines have a reserve: they catch up when a batch needs more draws than before. Engines that are
busy most of the time do not. They draw as far ahead as they may, since a stock of groups is their only reserve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from math import ceil, sqrt
from typing import NamedTuple

from olmorl.clock import Clock

LATE = 0.02
"""Share of draws that may take longer than the draw time."""
SURE = 2.0
"""Standard deviations by which the expected number of useful groups exceeds the number that is needed."""
BATCHES_SEEN, LEAST_SEEN = 4, 64
"""The estimates are over the results of so many batches, and over this many results at least."""
STEPS_SEEN = 8
LEAST_STEPS = 3
"""Steps before the first estimate."""
WAITED = 0.005
"""Share of a step. A longer wait for a batch counts as one."""
GROWTH, SHRINKAGE = 2.5, 0.99
"""Factors of the margin after a batch that the learner waited for, and after one that was ready."""
LEAST_MARGIN, LARGEST_MARGIN = 2.0, 16.0
BUSY = 0.4
"""With a larger share of their slots in use, the engines' reserve is too small."""
BUSY_STEPS = 4
"""Steps over which that share is averaged."""
WORTH = 4.0
"""Draws wait while the learner waits this many times as long for stragglers as it trains. Below it, the slots that stay
free during a step can cost more than the next version gains."""


class Rates(NamedTuple):
    """The measured rates."""

    draw_s: float
    """From a draw to its result: all but the slowest draws take less."""
    step_s: float
    """Between two batches that the learner asks for, without its wait."""
    useful: float
    """Share of the draws that can train."""
    busy: float
    """Share of the engines' slots in use."""


def draws_to_finish(groups: int, useful: float) -> int:
    """Draws that almost surely give so many useful groups, when each is useful with probability `useful`."""
    if groups <= 0:
        return 0
    spread = SURE * sqrt(useful * (1 - useful))
    # The larger root of n * useful - spread * sqrt(n) = groups, in sqrt(n).
    root = (spread + sqrt(spread**2 + 4 * useful * groups)) / (2 * useful)
    return ceil(root**2 - 1e-9)


def unfinished_needed(rates: Rates, *, elapsed_s: float, margin: float, ready: int, batch: int, waiting: bool) -> int:
    """Draws that must be under way now, so that no batch of `batch` groups is late.

    Args:
        elapsed_s: since the step under way began.
        margin: factor of the draw time; 1 or more.
        ready: groups that wait for a step.
        waiting: the learner waits for a batch: no step is under way.
    """
    due = elapsed_s + margin * rates.draw_s
    # The step under way hides the generation of one batch, so the next batch is always due.
    batches = max(1, int(due / rates.step_s)) + waiting
    return draws_to_finish(batches * batch - ready, rates.useful)


class DrawAhead:
    """Owns the estimates of one start of the learner. They are measured again after a restart."""

    def __init__(self, clock: Clock, batch: int) -> None:
        self._clock = clock
        self._batch = batch
        self._drawn_at: dict[int, float] = {}
        seen = max(BATCHES_SEEN * batch, LEAST_SEEN)
        self._draw_s: deque[float] = deque(maxlen=seen)
        self._useful: deque[bool] = deque(maxlen=seen)
        self._step_s: deque[float] = deque(maxlen=STEPS_SEEN)
        self._busy: deque[float] = deque(maxlen=BUSY_STEPS)
        self._busy_now: list[float] = []
        self._margin = LEAST_MARGIN
        self._began: float | None = None
        self._ended: float | None = None

    def drawn(self, draws: Iterable[int]) -> None:
        """Note draws that were made now."""
        self._drawn_at |= dict.fromkeys(draws, self._clock.now())

    def finished(self, draw_id: int, *, useful: bool) -> None:
        """Note a result. Draws of an earlier start count for the share of useful groups only."""
        self._useful.append(useful)
        if (drawn_at := self._drawn_at.pop(draw_id, None)) is not None:
            self._draw_s.append(self._clock.now() - drawn_at)

    def forget_all_but(self, open_draws: Container[int]) -> None:
        """Forget the draws that are no longer open: they ended without a result, for instance after a fail-over."""
        self._drawn_at = {draw: at for draw, at in self._drawn_at.items() if draw in open_draws}

    def paused(self) -> None:
        """The run is paused: the times that have begun are not measured."""
        self._drawn_at.clear()
        self._ended = None

    def engines_busy(self, share: float) -> None:
        """Note the share of the engines' slots in use now."""
        self._busy_now.append(share)

    def step_began(self) -> None:
        """The learner waited for a batch and has it now, or had it when it asked."""
        self._began = now = self._clock.now()
        if self._ended is not None and self._step_s:
            waited = now - self._ended > WAITED * min(self._step_s)
            self._margin = min(max(self._margin * (GROWTH if waited else SHRINKAGE), LEAST_MARGIN), LARGEST_MARGIN)
        self._ended = None

    def step_ended(self) -> None:
        """The learner has trained a batch."""
        self._ended = now = self._clock.now()
        if self._began is not None:
            self._step_s.append(now - self._began)
        self._began = None
        if self._busy_now:
            self._busy.append(sum(self._busy_now) / len(self._busy_now))
            self._busy_now = []

    def draws_to_finish(self, groups: int) -> int:
        """Draws that almost surely give so many useful groups; without spares until a batch of results is known."""
        known = len(self._useful) >= self._batch and any(self._useful)
        return draws_to_finish(groups, self._share_useful if known else 1.0)

    @property
    def _share_useful(self) -> float:
        return sum(self._useful) / len(self._useful)

    @property
    def rates(self) -> Rates | None:
        """None while too little was measured."""
        if (
            len(self._step_s) < LEAST_STEPS
            or len(self._draw_s) < self._batch
            or not any(self._useful)
            or not self._busy
        ):
            return None
        draws, steps = sorted(self._draw_s), sorted(self._step_s)
        return Rates(
            draw_s=draws[int((1 - LATE) * (len(draws) - 1))],
            step_s=max(steps[len(steps) // 4], 1e-6),
            useful=self._share_useful,
            busy=sum(self._busy) / len(self._busy),
        )

    def needed(self, ready: int) -> int | None:
        """Draws that must be under way now in addition to the `ready` groups; None: as many as are allowed.

        It is None while too little was measured, and while the engines have too little reserve.
        """
        if (rates := self.rates) is None or rates.busy > BUSY:
            return None
        waiting = self._began is None
        return unfinished_needed(
            rates,
            elapsed_s=0.0 if self._began is None else self._clock.now() - self._began,
            margin=self._margin,
            ready=ready,
            batch=self._batch,
            waiting=waiting,
        )


class VersionWait:
    """Draws wait for the next version only while the learner waits far longer for stragglers than it trains.

    A group must train within `max_lag` versions of its first token. While the learner waits for a straggler, finished
    groups gather. Then they train in quick succession, and each step takes a version from the draws that have begun:
    soon the longest of them holds up the learner. A draw that waits for the last of these versions loses the time of a
    few short steps, and has all its versions.
    """

    def __init__(self, clock: Clock, steps: int) -> None:
        """The times of the last `steps` steps count, one or more."""
        self._clock = clock
        self._held_up_s: deque[float] = deque(maxlen=steps)
        self._train_s: deque[float] = deque(maxlen=steps)
        self._held_up_at: float | None = None
        self._began: float | None = None

    def held_up(self) -> None:
        """The learner has no batch, because an unfinished draw would grow too old."""
        if self._held_up_at is None:
            self._held_up_at = self._clock.now()

    def paused(self) -> None:
        """The run is paused: nothing but the pause holds the learner up."""
        self._held_up_at = None

    def step_began(self) -> None:
        """The learner has a batch."""
        self._began = now = self._clock.now()
        self._held_up_s.append(0.0 if self._held_up_at is None else now - self._held_up_at)
        self._held_up_at = None

    def step_ended(self) -> None:
        """The learner has trained a batch."""
        if self._began is not None:
            self._train_s.append(self._clock.now() - self._began)
        self._began = None

    @property
    def pays(self) -> bool:
        """Whether a draw gains more by the next version than its wait costs."""
        return sum(self._held_up_s) > WORTH * sum(self._train_s)
