"""The actors as the launcher keeps them: they come, die, come back and leave, and the learner does not notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from olmorl.deploy import hosts
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.cluster import BY_NODES, Place
from olmorl.deploy.process import Process
from olmorl.deploy.supervise import Context, Heartbeats, Restarts, introduced, is_mistake
from olmorl.deploy.vigil import Vigil
from olmorl.errors import DeadlinePassed, OlmoRLError, ResourceError, RunEnded, UserError
from olmorl.learner.waiting import Wait
from olmorl.messages import ActorStatus

_STARTING, _WORKING, _WAITING, _QUARANTINED = "starting", "working", "waiting", "quarantined"
_LOOK_S = 0.5
_GRACE_S = 30.0
"""Beyond its own deadline for a start, before an actor is ended for it."""


@dataclass(eq=False)
class Slot:
    """A place for one engine, and who is there now."""

    name: str
    index: int
    place: Place
    restarts: Restarts
    process: Process | None = None
    num_starts: int = 0
    state: str = _WAITING
    started_at: float = 0.0
    there_since: float | None = None
    """When its process answered first: before that it may have waited for a host."""
    completions: int = 0
    leaving: bool = False
    cause: str = ""
    """Of its last death."""


class Fleet:
    """Each start of an actor has a name of its own, and every actor that is not here any more loses its prompts.

    Args:
        access: the queue's.
    """

    def __init__(self, context: Context, access: QueueAccess) -> None:
        self._context = context
        self._access = access
        self._slots: list[Slot] = []
        self._num_slots = 0
        self._heartbeats = Heartbeats()
        self._vigil = Vigil(context.supervision.no_actor_deadline_s)
        self._tasks: asyncio.TaskGroup | None = None
        self._keepers: set[asyncio.Task[None]] = set()
        self._resizing = asyncio.Lock()
        self.num_deaths = 0

    # --- life -------------------------------------------------------------------------------------

    async def place(self, count: int) -> None:
        """Find a place for so many actors more. Raises ResourceError when the cluster has none."""
        await self._add(count, self._context.settings.cluster.wait_s, BY_NODES)

    async def keep(self) -> None:
        """Keep an actor in every slot.

        Raises:
            RunEnded: no actor is at work, and none will be soon.
            UserError: what people have to mend before any actor can start.
        """
        async with asyncio.TaskGroup() as self._tasks:
            for slot in self._slots:
                self._keep_from_now(slot)
            while True:
                await asyncio.sleep(_LOOK_S)
                self._end_slow_starts()
                self._check_that_someone_may_work()
                self._check_that_someone_works()

    async def _add(self, count: int, wait_s: float, asked_by: str) -> list[Slot]:
        """All of them or none; all are asked for at once, so that a cluster that grows knows by how much."""
        cluster = self._context.cluster
        waits = [cluster.place_engine(wait_s, asked_by) for _ in range(count)]
        found = await asyncio.gather(*waits, return_exceptions=True)
        places = [place for place in found if not isinstance(place, BaseException)]
        if error := next((each for each in found if isinstance(each, BaseException)), None):
            for place in places:
                cluster.give_up(place)
            raise error
        slots = []
        for number, place in enumerate(places, self._num_slots):
            slots.append(Slot(f"actor-{number}", number, place, Restarts(self._context.supervision)))
        self._num_slots += count
        self._slots += slots
        return slots

    def _keep_from_now(self, slot: Slot) -> None:
        assert self._tasks is not None
        keeper = self._tasks.create_task(self._keep(slot))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def _keep(self, slot: Slot) -> None:
        while not slot.leaving:
            cause = await self._live(slot)
            if not slot.leaving and not await self._come_back(slot, cause):
                return
        self._remove(slot)

    def _remove(self, slot: Slot) -> None:
        self._slots.remove(slot)
        self._context.cluster.give_up(slot.place)

    async def _live(self, slot: Slot) -> OlmoRLError | None:
        """One start of the actor, to its end; returns what ended it."""
        process = slot.process = self._start(slot)
        try:
            who = await introduced(process, self._context.settings.actors.start_deadline_s)
            slot.there_since = time.monotonic()
            self._context.roster.add(slot.name, who)
            process.begin("run")
            await process.ended()
            return None
        except OlmoRLError as error:
            return error
        finally:
            process.kill()
            slot.process, slot.state = None, _WAITING
            self._context.roster.remove(slot.name)

    def _start(self, slot: Slot) -> Process:
        context = self._context
        slot.num_starts += 1
        slot.state, slot.started_at, slot.there_since, slot.completions = _STARTING, time.monotonic(), None, 0
        name = slot.name if slot.num_starts == 1 else f"{slot.name}.{slot.num_starts}"
        cores = context.plan.engine_cores
        return context.cluster.start(
            hosts.ActorHost,
            name,
            slot.place,
            context.tree,
            slot.name,
            name,
            cores[slot.index % len(cores)],
            self._access,
            gpus=context.plan.gpus_per_engine if context.plan.on_gpu else 0,
            calls=16,
            env=hosts.actor_environment(context.plan),
        )

    async def _come_back(self, slot: Slot, error: OlmoRLError | None) -> bool:
        """Wait for the next start; False when there is to be none."""
        self.num_deaths += 1
        slot.cause = str(error or f"{slot.name} left without being asked")
        delay = slot.restarts.after_death(worked=slot.completions > 0)
        if delay is None or is_mistake(error):
            slot.state = _QUARANTINED
            deaths = slot.restarts.deaths
            self._context.say(f"{slot.name} is in quarantine after {deaths} death(s), the last: {slot.cause}")
            if error and is_mistake(error) and all(other.state == _QUARANTINED for other in self._slots):
                raise error
            self._check_that_someone_may_work()
            return False
        when = f"in {delay:.0f} s" if delay else "now"
        self._context.say(f"{slot.cause}: its prompts go elsewhere, and {slot.name} starts again {when}")
        await asyncio.sleep(delay)
        return True

    def _end_slow_starts(self) -> None:
        for slot in self._slots if self._vigil.sees else ():
            if slot.process and slot.state == _STARTING and time.monotonic() - slot.started_at > self._start_limit_s:
                slot.process.kill(f"has not started within {self._start_limit_s:g} s")

    def _check_that_someone_may_work(self) -> None:
        if self._slots and all(slot.state == _QUARANTINED and not slot.leaving for slot in self._slots):
            raise RunEnded(self._describe("every actor is in quarantine"))

    def _check_that_someone_works(self) -> None:
        if silent_s := self._vigil.watch(any(slot.state == _WORKING for slot in self._slots)):
            raise RunEnded(self._describe(f"no actor has been at work for {silent_s:.0f} s"))

    def _describe(self, what: str) -> str:
        causes = "; ".join(f"{slot.name} ({slot.state}): {slot.cause or 'no death yet'}" for slot in self._slots[:5])
        return f"{what}: {causes}"

    @property
    def _start_limit_s(self) -> float:
        return self._context.settings.actors.start_deadline_s + _GRACE_S

    # --- what is heard of them ----------------------------------------------------------------------

    @property
    def slots(self) -> Sequence[Slot]:
        return self._slots

    @property
    def size(self) -> int:
        """How many actors there shall be."""
        return sum(not slot.leaving for slot in self._slots)

    def look(self, statuses: Sequence[ActorStatus], now: float) -> list[str]:
        """Take note of the heartbeats at time `now`; returns the names of actors that are not of this fleet."""
        self._vigil.looked()
        members = {slot.process.name: slot for slot in self._slots if slot.process}
        # Whoever is there and was not heard of yet is silent from now on.
        beats: dict[str, float] = {name: 0.0 for name, slot in members.items() if slot.there_since}
        self._heartbeats.heard(beats | {status.name: status.at for status in statuses}, now)
        for status in statuses:
            if slot := members.get(status.name):
                self._heard(slot, status, now)
        for slot in members.values():
            self._end_silent(slot)
        return [status.name for status in statuses if status.name not in members]

    def _heard(self, slot: Slot, status: ActorStatus, now: float) -> None:
        slot.completions = status.completions
        if slot.state == _STARTING and status.state != "starting":
            slot.state = _WORKING
            self._vigil.started(now - (slot.there_since or now))

    def _end_silent(self, slot: Slot) -> None:
        settings, limit_s = self._context.supervision, self._context.supervision.heartbeat_deadline_s
        if slot.state != _WORKING:
            # While an engine starts, its libraries may keep everything else waiting.
            limit_s = max(limit_s, settings.answer_deadline_s)
        if slot.process and self._heartbeats.silent_s(slot.process.name) > limit_s:
            slot.process.kill(f"has had no heartbeat for {limit_s:g} s")

    def troubles(self) -> list[str]:
        """Who is not at work because of a death, for people."""
        down = [slot for slot in self._slots if slot.cause and slot.state in (_WAITING, _QUARANTINED)]
        return [f"{slot.name}: {slot.state} after {slot.restarts.deaths} death(s): {slot.cause}" for slot in down]

    def waits(self) -> list[Wait]:
        """Who is waited for."""
        now = time.monotonic()
        starting = [slot for slot in self._slots if slot.state == _STARTING]
        return [Wait("its start", slot.name, now - slot.started_at, self._start_limit_s) for slot in starting]

    # --- what is asked of them ----------------------------------------------------------------------

    async def resize(self, count: int) -> None:
        """Have so many actors: new ones join now, the last ones leave once they are done with what they have.

        Raises:
            ResourceError: the cluster has no place for all of them; nobody has joined then.
        """
        if count > (most := max(self.size, self._context.cluster.most_engines)):
            raise ResourceError(
                f"--count {count}: this run can have {most} actor(s) at most; ask for no more than that"
            )
        async with self._resizing:
            await self._resize(count)

    async def _resize(self, count: int) -> None:
        staying = self._staying()
        for slot in staying[count:]:
            self._dismiss(slot)
        for slot in await self._add(max(0, count - len(staying)), _GRACE_S, "--count"):
            self._keep_from_now(slot)

    def _staying(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.leaving and slot.state != _QUARANTINED]

    def drain(self, name: str) -> None:
        """Have the actor `name` finish what it has in hand and leave for good.

        Raises:
            UserError: there is no such actor, or nobody would be left.
        """
        for slot in self._slots:
            if name == slot.name or (slot.process and name == slot.process.name):
                if self._staying() == [slot]:
                    raise UserError(f"{name} is the last actor: have others join first (actors --count), or use pause")
                return self._dismiss(slot)
        raise UserError(f"no actor {name!r} here; there are: " + ", ".join(slot.name for slot in self._slots))

    async def stop(self, deadline_s: float) -> None:
        """Have all actors give back what they have and leave; those that do not in time are ended."""
        assert self._tasks is not None
        for slot in self._slots:
            slot.leaving = True
            if slot.process:
                self._tasks.create_task(_ask_to_leave(slot.process, {"stop": deadline_s}))
        if keepers := list(self._keepers):
            await asyncio.wait(keepers, timeout=deadline_s)

    def _dismiss(self, slot: Slot) -> None:
        assert self._tasks is not None
        slot.leaving = True
        if slot.state == _QUARANTINED:
            self._remove(slot)
        elif slot.process:
            patience = {"drain": self._context.supervision.drain_deadline_s} if slot.state == _WORKING else {}
            self._tasks.create_task(_ask_to_leave(slot.process, {**patience, "stop": _GRACE_S}))


async def _ask_to_leave(process: Process, orders: Mapping[str, float]) -> None:
    """Give each order its time (s); an actor that obeys none is ended."""
    for order, deadline_s in orders.items():
        try:
            await process.call(order, timeout_s=deadline_s)
        except DeadlinePassed:
            continue
        except OlmoRLError:
            break
        else:
            return
    process.kill()
