"""What other schedulers would reach with stragglers: policies in a model of the service in which nothing takes time.

    python benchmarks/straggler_policies.py --json benchmarks/results/straggler_policies.json

The workload is that of `stragglers.py` with 2 engines of 32 slots. Versions, verdicts, leases and results cost no time
here, and everybody knows at once what happened, so the figures are above those of the service. The model decides which
groups a step takes with the service's own `choose`, and the engines have the speed of the fake engine.

A policy says when a draw may begin, on which engine, and when a batch that could train waits. Some policies know
lengths that no real scheduler knows; they show what such knowledge would be worth.

Training earlier never hurts by itself. Take any schedule, keep its batches and the times at which draws begin, and
train each batch as soon as its groups are finished. Each draw then begins at the same version or at a later one, so
every token is at most as old as before. A policy gains only by other times to begin, other batches or other engines.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from typing import NamedTuple

import measure
import stragglers
from rich.console import Console
from rich.table import Table
from stragglers import BATCH, LAG, LEARNER, SLOWDOWN, TOKENS_PER_S, Cell

from olmorl.learner.batching.scheduling import Deadline, choose

CELL = Cell(2, 32, 1.3)
WARM_UP = LAG + 2
EARLY = 1e-6
"""A sequence whose last token is this near, in steps, has ended."""


class Engine:
    """All running answers gain a token a step; a step gets slower with each of them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: list[tuple[float, int]] = []
        """Heap of the last step and the draw of each answer."""
        self.waiting: deque[tuple[int, int]] = deque()
        """Length and draw of the answers without a slot."""
        self.used_s = 0.0
        """Seconds that slots were in use, summed over all slots."""
        self._steps = 0.0
        self._now = 0.0

    @property
    def has_room(self) -> bool:
        return len(self.running) + len(self.waiting) < self.slots

    @property
    def _speed(self) -> float:
        return TOKENS_PER_S / (1 + SLOWDOWN * (len(self.running) - 1))

    def begin(self, draw: int, length: int) -> None:
        """Begin an answer when there is a slot."""
        self.waiting.append((length, draw))
        self._fill()

    def left_s(self, last_step: float) -> float:
        """Seconds until this step, at the present speed."""
        return max(0.0, last_step - self._steps) / self._speed

    def next_end(self) -> float:
        """The time at which the next answer ends."""
        return self._now + self.left_s(self.running[0][0]) if self.running else inf

    def advance(self, now: float) -> list[int]:
        """Run until `now`; returns the draw of each answer that has ended."""
        if self.running:
            self._steps += (now - self._now) * self._speed
            self.used_s += (now - self._now) * len(self.running)
        self._now = now
        ended = []
        while self.running and self.running[0][0] <= self._steps + EARLY:
            ended.append(heappop(self.running)[1])
        self._fill()
        return ended

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            length, draw = self.waiting.popleft()
            heappush(self.running, (self._steps + length, draw))


class Model:
    """The service without delays: no token is older than `LAG`, no draw is lost, every batch is full."""

    def __init__(self, groups: Sequence[Sequence[int]], policy: Policy, cell: Cell = CELL) -> None:
        self.engines = [Engine(cell.slots) for _ in range(cell.actors)]
        self.now = 0.0
        self.built = 0
        """Batches that were handed to the learner."""
        self.trains_until: float | None = None
        """End of the step under way."""
        self.began: dict[int, int] = {}
        """The version with which each unfinished draw began."""
        self._groups = groups
        self._policy = policy
        self._cell = cell
        self._learner = LEARNER * stragglers.full_speed(cell)
        self._left: Counter[int] = Counter()
        self._ready: dict[int, Deadline] = {}
        self._next = 0
        self._sorted: list[int] = []
        self._num_begun = self._arrivals = 0
        self._batch_tokens = 0
        self.steps: list[tuple[float, int, float]] = [(0.0, 0, 0.0)]
        """After each step: the time, all trained tokens, and the slots' seconds in use."""

    @property
    def version(self) -> int:
        """Steps that the learner has taken. All engines have this version."""
        return len(self.steps) - 1

    @property
    def room(self) -> int:
        """Draws that may begin: all that began by now train within `LAG` versions from now."""
        return (self.version + LAG + 1) * BATCH - self._num_begun

    def run(self, steps: int) -> None:
        """Run until the learner has taken so many steps."""
        while self.version < steps:
            self._train()
            self._begin()
            ends = [engine.next_end() for engine in self.engines]
            self.now = min([*ends, inf if self.trains_until is None else self.trains_until])
            assert self.now < inf, f"{self._policy.name}: nothing runs, and nothing may begin"
            for engine in self.engines:
                for draw in engine.advance(self.now):
                    self._end_answer(draw)
            if self.trains_until is not None and self.trains_until <= self.now:
                self.trains_until = None
                tokens = self.steps[-1][1] + self._batch_tokens
                self.steps.append((self.now, tokens, sum(engine.used_s for engine in self.engines)))

    @property
    def num_ready(self) -> int:
        """Finished groups that no step has taken."""
        return len(self._ready)

    def batch(self) -> list[Deadline] | None:
        """The groups that the next step would take."""
        unfinished = [version + LAG for version in self.began.values()]
        return choose(self._ready.values(), unfinished, self.built, BATCH)

    def figures(self) -> tuple[float, float]:
        """Share of the slots in use, and tokens per second divided by full engines', after the warm-up."""
        (began, before, used_before), (ended, after, used) = self.steps[WARM_UP], self.steps[-1]
        slots = self._cell.actors * self._cell.slots
        seconds = ended - began
        return (used - used_before) / (seconds * slots), (after - before) / seconds / stragglers.full_speed(self._cell)

    def _train(self) -> None:
        if self.trains_until is not None or self._policy.holds_batch(self) or (chosen := self.batch()) is None:
            return
        for group in chosen:
            assert group.last_version >= self.built, "a group is older than the lag"
            del self._ready[group.draw_id]
        self.built += 1
        self._batch_tokens = sum(sum(self._groups[group.draw_id]) for group in chosen)
        self.trains_until = self.now + self._batch_tokens / self._learner

    def _begin(self) -> None:
        """One draw after the other goes to the engine with the fewest answers."""
        while self.room > 0:
            for engine in self._by_load():
                if engine.has_room and self._policy.may_begin(self, engine):
                    break
            else:
                return
            draw = self._next_draw()
            self.began[draw] = self.version
            self._left[draw] = len(self._groups[draw])
            self._num_begun += 1
            for length in self._groups[draw]:
                engine.begin(draw, length)
                if self._policy.spreads_groups:
                    engine = self._by_load()[0]

    def _by_load(self) -> list[Engine]:
        return sorted(self.engines, key=lambda engine: len(engine.running) + len(engine.waiting))

    def _next_draw(self) -> int:
        if not self._sorted:
            known = range(self._next, self._next + self._policy.sorted_draws)
            self._sorted = sorted(known, key=lambda draw: max(self._groups[draw]))
            self._next = known.stop
        return self._sorted.pop()

    def _end_answer(self, draw: int) -> None:
        self._left[draw] -= 1
        if not self._left[draw]:
            self._arrivals += 1
            self._ready[draw] = Deadline(self.began.pop(draw) + LAG, self._arrivals, draw)


class Policy(NamedTuple):
    """A scheduler; by default it begins and trains as early as it may, in the order of the draws."""

    name: str
    may_begin: Callable[[Model, Engine], bool] = lambda model, engine: True
    holds_batch: Callable[[Model], bool] = lambda model: False
    sorted_draws: int = 1
    """Of so many draws the longest begins first. More than one: it knows their lengths."""
    spreads_groups: bool = False
    """Whether each answer of a draw goes to the engine with the fewest answers."""


def learner_rests(model: Model, engine: Engine) -> bool:
    """No step is under way, so no newer version is about to come."""
    return model.trains_until is None


def fewer_beside_old(most: int) -> Callable[[Model, Engine], bool]:
    """An engine with an answer that began three versions ago runs fewer, so that the answer is faster."""

    def may_begin(model: Model, engine: Engine) -> bool:
        def has_old(each: Engine) -> bool:
            return any(model.version - model.began[draw] >= LAG - 1 for _, draw in each.running)

        limited = has_old(engine) and not all(has_old(each) for each in model.engines)
        return learner_rests(model, engine) and (not limited or len(engine.running) < most)

    return may_begin


def not_before_a_version(seconds: float) -> Callable[[Model, Engine], bool]:
    """It knows the running answers' ends: no draw begins when the last due group ends within `seconds`."""

    def may_begin(model: Model, engine: Engine) -> bool:
        if not learner_rests(model, engine):
            return False
        due = {draw for draw, version in model.began.items() if version + LAG <= model.built}
        left = [each.left_s(last) for each in model.engines for last, draw in each.running if draw in due]
        return not left or max(left) >= seconds

    return may_begin


def age_limit(seconds: float) -> Callable[[Model, Engine], bool]:
    """Draws begin only within `seconds` after a version came."""
    return lambda model, engine: learner_rests(model, engine) and model.now - model.steps[-1][0] < seconds


def smaller_depth(batches: int) -> Callable[[Model, Engine], bool]:
    """Fewer draws are in flight than the lag allows."""
    return lambda model, engine: learner_rests(model, engine) and model.room > (LAG - batches) * BATCH


def until_a_burst(model: Model) -> bool:
    """Train `LAG` steps in a row or none."""
    if model.built % LAG:
        return False
    unfinished_due = any(version < model.built for version in model.began.values())
    return unfinished_due or model.num_ready < LAG * BATCH


def until_needed(model: Model) -> bool:
    """Train only when no further draw may begin."""
    return model.room > 0


POLICIES = (
    Policy("each draw begins at once"),
    Policy("draws wait for the version that is about to come", learner_rests),
    Policy("+ 3 batches ahead instead of 4", smaller_depth(3)),
    Policy("+ no draw begins later than 15 s after a version", age_limit(15.0)),
    Policy("+ the answers of a draw are spread over the engines", learner_rests, spreads_groups=True),
    Policy("+ at most 16 answers beside an old one", fewer_beside_old(16)),
    Policy("+ at most 24 answers beside an old one", fewer_beside_old(24)),
    Policy("+ the learner trains 4 steps in a row or none", learner_rests, until_a_burst),
    Policy("+ the learner trains only when no draw may begin", learner_rests, until_needed),
    Policy("knows running answers: no draw begins 4 s before a version", not_before_a_version(4.0)),
    Policy("knows running answers: no draw begins 8 s before a version", not_before_a_version(8.0)),
    Policy("knows all lengths: the longest of 64 draws first", learner_rests, sorted_draws=64),
    Policy("knows all lengths: the longest of 128 draws first", learner_rests, sorted_draws=128),
    Policy("knows all lengths: the longest of 256 draws first", learner_rests, sorted_draws=256),
)


def figures(policy: Policy, steps: int, seed: int, cell: Cell = CELL) -> tuple[float, float]:
    """Share of the slots in use and speed of one run, with the lengths that the service's engines would sample."""
    settings = stragglers.recipe(cell, seed, "unused")
    draws = (steps + 2 * LAG) * BATCH + 2 * policy.sorted_draws
    model = Model(stragglers.lengths(settings, draws), policy, cell)
    model.run(steps)
    return model.figures()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=stragglers.STEPS + WARM_UP)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    table = Table("policy", "slots in use", "speed")
    rows = []
    for policy in POLICIES:
        runs = [figures(policy, given.steps, seed) for seed in range(given.seeds)]
        busy, speed = zip(*runs, strict=True)
        table.add_row(policy.name, stragglers.spread(busy), stragglers.spread(speed))
        rows.append({"policy": policy.name, "busy": busy, "speed": speed})
    Console(width=130).print(table)
    if given.json:
        measure.write(given.json, {"benchmark": "straggler_policies", "rows": rows}, ("numpy",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
