"""The queue in the memory of one process, for tests and simulation. Messages go through the codec, as on the wire."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf

from olmorl import deadlines
from olmorl.clock import Clock
from olmorl.codec import encode
from olmorl.config import QueueSettings
from olmorl.errors import Superseded
from olmorl.messages import ActorStatus, Lease, Prompt, Result
from olmorl.ports import EVERYONE, MOST_DEAD_LETTERS, CommitOutcome, Counts, DeadLetter, QueuePlace, Taken
from olmorl.queues.prompts import deliveries
from olmorl.queues.prompts.deliveries import Delivery, StoredResult


@dataclass
class _Draw:
    payload: bytes
    attempt: int
    not_after: float = inf


@dataclass
class _Held:
    draw_id: int
    owner: str
    deadline: float


@dataclass
class _Lane:
    """Every live draw has its prompt here and is in exactly one of `again`, `fresh`, `leases` and `results`."""

    prompts: dict[int, _Draw] = field(default_factory=dict)
    again: deque[int] = field(default_factory=deque)
    fresh: deque[int] = field(default_factory=deque)
    leases: dict[str, _Held] = field(default_factory=dict)
    results: dict[int, StoredResult] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    """Grows by one number a draw; the adapter for long runs keeps one bit."""
    late: int = 0
    duplicates: int = 0
    dead: deque[DeadLetter] = field(default_factory=lambda: deque(maxlen=MOST_DEAD_LETTERS))
    pushed: asyncio.Event = field(default_factory=asyncio.Event)
    committed: asyncio.Event = field(default_factory=asyncio.Event)

    def enqueue(self, draw_id: int) -> None:
        queue = self.again if self.prompts[draw_id].attempt > 1 else self.fresh
        queue.append(draw_id)
        self.pushed.set()

    def next_queued(self) -> int | None:
        queue = self.again or self.fresh
        return queue.popleft() if queue else None

    def finish(self, entry: int, draw_id: int, result: bytes | None, cause: str = "") -> None:
        self.results[entry] = StoredResult(draw_id, self.prompts[draw_id].attempt, result, cause)
        self.done.add(draw_id)
        self.committed.set()


@dataclass
class _Run:
    incarnation: int = 0
    lanes: dict[str, _Lane] = field(default_factory=dict)
    statuses: dict[str, bytes] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)
    stored: Counter[str] = field(default_factory=Counter)
    """Tokens of stored results, by owner."""
    numbers: count[int] = field(default_factory=lambda: count(1))
    """Names of leases and results, never repeated."""


class MemoryQueue:
    """A draw is in exactly one place: no method awaits while it moves a draw.

    Args:
        settings: how long a lease holds, and how often and for how long a draw is attempted.
        bound: live draws of a lane at most.
        clock: deadlines are its wall time.
        run: the state to work on, for a second holder of the same queue; default: a new one.
    """

    def __init__(self, settings: QueueSettings, bound: int, clock: Clock, run: _Run | None = None) -> None:
        self._settings = settings
        self._bound = bound
        self._clock = clock
        self._run = run or _Run()
        self._incarnation = 0
        self._cursors: dict[str, int] = {}

    def another(self) -> MemoryQueue:
        """A second holder of the same run, with a claim of its own."""
        return MemoryQueue(self._settings, self._bound, self._clock, self._run)

    async def close(self) -> None: ...

    async def epoch(self) -> str:
        return ""

    # --- the orchestrator's end of the prompts

    async def claim(self, incarnation: int) -> None:
        mine = incarnation == self._run.incarnation == self._incarnation
        if incarnation <= self._run.incarnation and not mine:
            raise Superseded(f"incarnation {incarnation} is superseded by incarnation {self._run.incarnation}")
        self._run.incarnation = self._incarnation = incarnation
        self._cursors = {}

    async def push(self, prompts: Sequence[Prompt]) -> None:
        self._fence()
        new: dict[str, dict[int, Prompt]] = {}
        for prompt in prompts:
            lane = self._lane(prompt.lane)
            if prompt.draw_id not in lane.prompts and prompt.draw_id not in lane.done:
                new.setdefault(prompt.lane, {}).setdefault(prompt.draw_id, prompt)
        for name, draws in new.items():
            if any(prompt.attempt == 1 for prompt in draws.values()):
                deliveries.check_room(len(self._lane(name).prompts), len(draws), self._bound)
        for name, draws in new.items():
            lane = self._lane(name)
            for draw_id, prompt in draws.items():
                lane.prompts[draw_id] = _Draw(encode(prompt), prompt.attempt)
                lane.enqueue(draw_id)

    async def expire(self) -> int:
        self._fence()
        return self._end_leases(lambda held: held.deadline <= self._clock.wall())

    async def release_dead_actor(self, owner: str) -> int:
        self._fence()
        return self._end_leases(lambda held: held.owner == owner)

    async def forget_actor(self, owner: str) -> None:
        self._run.statuses.pop(owner, None)
        self._run.stored.pop(owner, None)

    async def inventory(self, lane: str) -> dict[int, QueuePlace]:
        self._fence()
        store = self._lane(lane)
        return {
            **dict.fromkeys([*store.again, *store.fresh], QueuePlace.QUEUED),
            **{held.draw_id: QueuePlace.LEASED for held in store.leases.values()},
            **{stored.draw_id: QueuePlace.RESULTS for stored in store.results.values()},
        }

    async def queued(self, lane: str) -> list[int]:
        self._fence()
        return [*self._lane(lane).again, *self._lane(lane).fresh]

    async def withdraw(self, draw_ids: Iterable[int], lane: str) -> None:
        self._fence()
        store = self._lane(lane)
        withdrawn = (set(draw_ids) & store.prompts.keys()) - store.done
        store.prompts = {draw_id: draw for draw_id, draw in store.prompts.items() if draw_id not in withdrawn}
        store.again = deque(filter(store.prompts.get, store.again))
        store.fresh = deque(filter(store.prompts.get, store.fresh))
        store.leases = {name: held for name, held in store.leases.items() if held.draw_id in store.prompts}

    async def forget_done(self, draw_ids: Iterable[int], lane: str) -> None:
        self._fence()
        store = self._lane(lane)
        store.done.difference_update(draw_id for draw_id in draw_ids if draw_id not in store.prompts)

    async def flush(self, lane: str) -> None:
        self._fence()
        store = self._lane(lane)
        for place in (store.prompts, store.again, store.fresh, store.leases, store.results, store.done):
            place.clear()

    # --- the actor's end

    async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
        store = self._lane(lane)
        give_up = self._clock.now() + wait_s
        while True:
            leases = self._lease_now(store, owner, limit, lane)
            if leases or not await self._woken(store.pushed, give_up):
                return leases

    async def extend(self, leases: Sequence[Lease]) -> set[str]:
        now = self._clock.wall()
        lost = set()
        for lease in leases:
            held = self._lane(lease.prompt.lane).leases.get(lease.lease_id)
            if held is None or held.deadline <= now:
                lost.add(lease.lease_id)
            else:
                held.deadline = now + self._settings.lease_s
        return lost

    async def give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            store = self._lane(lease.prompt.lane)
            held = store.leases.pop(lease.lease_id, None)
            if held is not None:
                store.again.append(held.draw_id)
                store.pushed.set()

    async def commit(self, lease: Lease, result: Result) -> CommitOutcome:
        deliveries.check_same_draw(lease, result)
        store, draw_id = self._lane(lease.prompt.lane), lease.prompt.draw_id
        held = store.leases.get(lease.lease_id)
        if held is not None and held.deadline > self._clock.wall():
            store.finish(next(self._run.numbers), draw_id, encode(result))
            del store.leases[lease.lease_id]
            self._run.stored[lease.owner] += result.num_tokens
            return CommitOutcome.STORED
        if draw_id in store.done:
            store.duplicates += 1
            return CommitOutcome.DUPLICATE
        store.late += 1
        return CommitOutcome.LATE

    async def heartbeat(self, status: ActorStatus) -> str:
        self._run.statuses[status.name] = encode(status)
        return self._run.orders.get(status.name) or self._run.orders.get(EVERYONE) or "run"

    # --- the orchestrator's end of the results

    async def take(self, limit: int, lane: str, wait_s: float) -> list[Taken]:
        store, cursors, give_up = self._lane(lane), self._cursors, self._clock.now() + wait_s
        while True:
            self._fence()
            taken = self._take_now(store, cursors, limit, lane)
            if taken or not await self._woken(store.committed, give_up):
                return taken

    async def trim(self, taken: Sequence[Taken]) -> None:
        self._fence()
        for item in taken:
            store = self._lane(item.result.prompt.lane)
            if store.results.pop(int(item.entry), None):
                del store.prompts[item.draw_id]

    async def counts(self, lane: str) -> Counts:
        store = self._lane(lane)
        queued = len(store.again) + len(store.fresh)
        return Counts(queued, len(store.leases), len(store.results), store.late, store.duplicates)

    async def dead_letters(self, lane: str) -> list[DeadLetter]:
        return list(self._lane(lane).dead)

    async def drop_dead_letters(self, draw_ids: Iterable[int], lane: str) -> None:
        self._fence()
        dropped, dead = set(draw_ids), self._lane(lane).dead
        for letter in [letter for letter in dead if letter.draw_id in dropped]:
            dead.remove(letter)

    async def statuses(self) -> dict[str, ActorStatus]:
        statuses, _ = deliveries.to_statuses(self._run.statuses, self._run.stored)
        self._run.statuses = {name: status for name, status in self._run.statuses.items() if name in statuses}
        return statuses

    async def set_control(self, owner: str, order: str) -> None:
        deliveries.check_order(order)
        if owner == EVERYONE:
            self._run.orders.clear()
        self._run.orders[owner] = order

    # --- moves

    def _fence(self) -> None:
        if self._incarnation != self._run.incarnation:
            raise Superseded(f"incarnation {self._incarnation} is superseded by incarnation {self._run.incarnation}")

    def _lane(self, name: str) -> _Lane:
        return self._run.lanes.setdefault(name, _Lane())

    async def _woken(self, event: asyncio.Event, give_up: float) -> bool:
        remaining = give_up - self._clock.now()
        event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(remaining):
                return remaining > 0 and await event.wait()
        return False

    def _lease_now(self, store: _Lane, owner: str, limit: int, lane: str) -> list[Lease]:
        deadline, leases = self._clock.wall() + self._settings.lease_s, list[Lease]()
        limit = 0 if self._run.orders.get(owner) == "drain" else limit
        while len(leases) < limit and (draw_id := store.next_queued()) is not None:
            draw, number = store.prompts[draw_id], next(self._run.numbers)
            parcel = Delivery(draw.payload, draw_id, draw.attempt, f"{draw_id}/{number}")
            try:
                leases.append(deliveries.to_lease(parcel, owner, deadline, lane))
            except ValueError as error:
                store.dead.append(DeadLetter(draw_id, str(error), draw.payload))
                store.finish(number, draw_id, None, "poison")
            else:
                store.leases[parcel.lease_id] = _Held(draw_id, owner, deadline)
        return leases

    def _end_leases(self, ended: Callable[[_Held], bool]) -> int:
        now, num_ended = self._clock.wall(), 0
        for store in self._run.lanes.values():
            for lease_id in [name for name, held in store.leases.items() if ended(held)]:
                self._start_again(store, store.leases.pop(lease_id).draw_id, now)
                num_ended += 1
        return num_ended

    def _start_again(self, store: _Lane, draw_id: int, now: float) -> None:
        draw, cause = store.prompts[draw_id], ""
        if draw.attempt >= deadlines.MAX_ATTEMPTS:
            cause, reason = "attempts", f"none of its {draw.attempt} attempts ended with a commit"
        elif now >= draw.not_after:
            cause, reason = "total_deadline", "lost once more after the total deadline"
        if cause:
            store.dead.append(DeadLetter(draw_id, reason, draw.payload))
            store.finish(next(self._run.numbers), draw_id, None, cause)
        else:
            draw.attempt += 1
            draw.not_after = min(draw.not_after, now + deadlines.TOTAL_DEADLINE_S)
            store.enqueue(draw_id)

    def _take_now(self, store: _Lane, cursors: dict[str, int], limit: int, lane: str) -> list[Taken]:
        cursor = cursors.get(lane, 0)
        new = list(islice((entry for entry in store.results if entry > cursor), limit))
        if new:
            cursors[lane] = new[-1]
        return [Taken(str(entry), store.results[entry].draw_id, self._result(store, entry, lane)) for entry in new]

    def _result(self, store: _Lane, entry: int, lane: str) -> Result:
        stored = store.results[entry]
        cause, detail = stored.cause, ""
        if stored.result is not None:
            try:
                return deliveries.to_result(stored, lane)
            except ValueError as error:
                store.dead.append(DeadLetter(stored.draw_id, str(error), stored.result))
                cause, detail = "poison", f"its result: {error}"
        return deliveries.to_failure(stored, store.prompts[stored.draw_id].payload, lane, cause, detail)
