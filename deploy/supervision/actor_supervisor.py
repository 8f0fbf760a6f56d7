"""Starts, restarts, drains and removes actors. The learner does not notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from olmorl.deploy.cluster.ray_cluster import BY_NODES, ReservedPlace
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes import actor_process
from olmorl.deploy.processes.actor_process import ActorProcess
from olmorl.deploy.supervision.policies import (
    Context,
    GiveUp,
    Heartbeats,
    NoActorWatch,
    Restarts,
    is_mistake,
    wait_for_start,
)
from olmorl.errors import DeadlinePassed, OlmoRLError, ProcessLost, ResourceError, RunEnded, UserError
from olmorl.messages import ActorStatus, Owner, Wait

_STARTING, _WORKING, _WAITING, _QUARANTINED = "starting", "working", "waiting", "quarantined"
_LOOK_S = 0.5
_GRACE_S = 30.0
"""Time beyond the deadline of a start before the actor is killed."""


@dataclass(eq=False)
class ActorSlot:
    """A place for one engine, and the actor that has it now."""

    name: str
    index: int
    place: ReservedPlace
    restarts: Restarts
    task: asyncio.Task[None] | None = None
    """Keeps an actor in the slot."""
    process: RemoteProcess | None = None
    loading: RemoteProcess | None = None
    """A process that was started ahead, and is not supervised yet."""
    num_starts: int = 0
    state: str = _WAITING
    started_at: float = 0.0
    there_since: float | None = None
    """The time of the first answer of its process. Before that it may have waited for a host."""
    was_up: bool = False
    """Whether its engine has started."""
    followers: tuple[str, ...] = ()
    """The processes of its engine on further nodes."""
    leaving: bool = False
    cause: str = ""
    """The cause of its last death."""


class ActorSupervisor:
    """Every slot has an actor, unless it is in quarantine. Each start of an actor has a new name.

    Args:
        access: how actors reach the queue.
    """

    def __init__(self, context: Context, access: QueueAccess) -> None:
        self._context = context
        self._access = access
        self._slots: list[ActorSlot] = []
        self._num_slots = 0
        self._heartbeats = Heartbeats()
        self._no_actor = NoActorWatch(context.supervision.deadlines.no_actor_s)
        self._tasks: asyncio.TaskGroup | None = None
        self._resizing = asyncio.Lock()
        self.num_deaths = 0
        self.stopping = False
        """Whether the run ends. An actor that is lost then is not started again."""

    # --- life -------------------------------------------------------------------------------------

    async def place(self, count: int) -> None:
        """Find places for `count` more actors. Raises ResourceError when the cluster has none."""
        await self._add(count, self._context.settings.actors.start_deadline_s, BY_NODES)

    def load(self) -> None:
        """Start the processes ahead of `supervise`: their imports take as long as other parts of a start."""
        for slot in self._slots:
            slot.loading = self._start(slot)

    async def supervise(self) -> None:
        """Keep an actor in every slot.

        Raises:
            RunEnded: no actor works, and none will soon.
            UserError: no actor can start before people mend the cause.
        """
        async with asyncio.TaskGroup() as self._tasks:
            for slot in self._slots:
                self._supervise_slot(slot)
            while True:
                await asyncio.sleep(_LOOK_S)
                if self.stopping:
                    continue
                self._end_slow_starts()
                self._check_any_may_work()
                self._check_any_works()

    async def _add(self, count: int, wait_s: float, asked_by: str) -> list[ActorSlot]:
        """Add slots, all or none. All places are requested at once, so that a growing cluster knows its new size."""
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
            slots.append(ActorSlot(f"actor-{number}", number, place, Restarts(is_mistake)))
        self._num_slots += count
        self._slots += slots
        return slots

    def _supervise_slot(self, slot: ActorSlot) -> None:
        assert self._tasks is not None
        slot.task = self._tasks.create_task(self._keep_alive(slot))

    async def _keep_alive(self, slot: ActorSlot) -> None:
        while not (slot.leaving or self.stopping):
            error = await self._run_once(slot)
            if not (slot.leaving or self.stopping) and not await self._wait_for_restart(slot, error):
                return
        self._remove(slot)

    def _remove(self, slot: ActorSlot) -> None:
        self._slots.remove(slot)
        self._context.cluster.give_up(slot.place)

    async def _run_once(self, slot: ActorSlot) -> OlmoRLError:
        """Run one start of the actor to its end; returns the cause of the end."""
        process = slot.process = slot.loading or self._start(slot)
        slot.loading, slot.state, slot.started_at = None, _STARTING, time.monotonic()
        try:
            identity = await wait_for_start(process, self._context.settings.actors.start_deadline_s)
            slot.there_since = time.monotonic()
            self._context.processes.add(slot.name, identity)
            process.begin("run")
            with suppress(OlmoRLError):  # `ended` has the cause
                await self._list_followers(slot, process)
            await process.ended()
            return ProcessLost(f"{slot.name} left without being asked")
        except OlmoRLError as error:
            return error
        finally:
            process.kill()
            slot.process, slot.state = None, _WAITING
            for name in (slot.name, *slot.followers):
                self._context.processes.remove(name)
            slot.followers = ()

    async def _list_followers(self, slot: ActorSlot, process: RemoteProcess) -> None:
        context = self._context
        if context.placement.nodes_per_engine > 1:
            found = await process.call("followers", timeout_s=context.settings.actors.start_deadline_s)
            slot.followers = tuple(found)
            for name, identity in found.items():
                context.processes.add(name, identity)

    def _start(self, slot: ActorSlot) -> RemoteProcess:
        context = self._context
        slot.num_starts += 1
        slot.there_since, slot.was_up = None, False
        name = slot.name if slot.num_starts == 1 else f"{slot.name}.{slot.num_starts}"
        cores = context.placement.engine_cores
        asked = (context.tree, slot.name, name, cores[slot.index % len(cores)], self._access)
        return actor_process.start(context.cluster, context.placement, ActorProcess, name, slot.place, *asked, calls=16)

    async def _wait_for_restart(self, slot: ActorSlot, error: OlmoRLError) -> bool:
        """Wait for the next start. Returns False when there will be none."""
        self.num_deaths += 1
        slot.cause = str(error)
        delay = slot.restarts.after_death(error, start_error="" if slot.was_up else slot.cause)
        if isinstance(delay, GiveUp):
            slot.state = _QUARANTINED
            self._context.processes.note(slot.name, _QUARANTINED, slot.cause)
            deaths = slot.restarts.deaths
            self._context.say(f"{slot.name} is in quarantine after {deaths} death(s), the last: {slot.cause}")
            if is_mistake(error) and all(other.state == _QUARANTINED for other in self._slots):
                raise error
            self._check_any_may_work()
            return False
        self._context.processes.note(slot.name, _WAITING, slot.cause)
        when = f"in {delay:.0f} s" if delay else "now"
        self._context.say(f"{slot.cause}: its prompts go elsewhere, and {slot.name} starts again {when}")
        await asyncio.sleep(delay)
        return True

    def _end_slow_starts(self) -> None:
        for slot in self._slots if self._no_actor.knows else ():
            if slot.process and slot.state == _STARTING and time.monotonic() - slot.started_at > self._start_limit_s:
                slot.process.kill(f"has not started within {self._start_limit_s:g} s")

    def _check_any_may_work(self) -> None:
        if self._slots and all(slot.state == _QUARANTINED and not slot.leaving for slot in self._slots):
            raise RunEnded(self._describe("every actor is in quarantine"))

    def _check_any_works(self) -> None:
        if idle_s := self._no_actor.too_long_s(any(slot.state == _WORKING for slot in self._slots)):
            raise RunEnded(self._describe(f"no actor has worked for {idle_s:.0f} s"))

    def _describe(self, what: str) -> str:
        causes = "; ".join(f"{slot.name} ({slot.state}): {slot.cause or 'no death yet'}" for slot in self._slots[:5])
        return f"{what}: {causes}"

    @property
    def _start_limit_s(self) -> float:
        return self._context.settings.actors.start_deadline_s + _GRACE_S

    # --- heartbeats ---------------------------------------------------------------------------------

    @property
    def slots(self) -> Sequence[ActorSlot]:
        return self._slots

    @property
    def size(self) -> int:
        """How many actors the run should have."""
        return sum(not slot.leaving for slot in self._slots)

    @property
    def num_serving(self) -> int:
        """How many actors have an engine that answers."""
        return sum(slot.state == _WORKING and not slot.leaving for slot in self._slots)

    @property
    def num_quarantined(self) -> int:
        """How many actors are not started again."""
        return sum(slot.state == _QUARANTINED for slot in self._slots)

    def note_heartbeats(self, statuses: Sequence[ActorStatus], now: float) -> list[str]:
        """Take note of the heartbeats at time `now`; returns the names of actors that are not in any slot."""
        self._no_actor.note_heartbeats()
        members = {slot.process.name: slot for slot in self._slots if slot.process}
        # An actor that has started and has sent no heartbeat is silent from now on.
        beats: dict[str, float] = {name: 0.0 for name, slot in members.items() if slot.there_since}
        self._heartbeats.note(beats | {status.name: status.at for status in statuses}, now)
        for status in statuses:
            if slot := members.get(status.name):
                self._note_heartbeat(slot, status, now)
        for slot in members.values():
            self._end_silent(slot)
        return [status.name for status in statuses if status.name not in members]

    def _note_heartbeat(self, slot: ActorSlot, status: ActorStatus, now: float) -> None:
        if status.completions:
            slot.restarts.note_work()
        if slot.state == _STARTING and status.state != "starting":
            slot.state, slot.was_up = _WORKING, True
            self._context.processes.note(slot.name, _WORKING)
            self._no_actor.note_start(now - (slot.there_since or now))

    def _end_silent(self, slot: ActorSlot) -> None:
        settings, limit_s = self._context.supervision, self._context.supervision.deadlines.heartbeat_s
        if slot.state != _WORKING:
            # While an engine starts, its libraries may block all other work.
            limit_s = max(limit_s, settings.deadlines.answer_s)
        if slot.process and self._heartbeats.silent_s(slot.process.name) > limit_s:
            slot.process.kill(f"has had no heartbeat for {limit_s:g} s")

    def describe(self, statuses: Iterable[ActorStatus]) -> list[dict[str, Any]]:
        """Each actor as a table of plain values: its last heartbeat, and what the launcher knows of it."""
        heard = {status.name: status for status in statuses}
        actors = []
        for slot in self._slots:
            status = heard.get(slot.process.name) if slot.process else None
            said = msgspec.to_builtins(status) if status else {}
            version = str(status.version) if status and status.version else None
            state = "leaving" if slot.leaving else status.state if status else slot.state
            own = {"name": slot.name, "state": state, "version": version, "starts": slot.num_starts}
            process = slot.process.name if slot.process else None
            actors.append({**said, **own, "process": process, "deaths": slot.restarts.deaths, "last_cause": slot.cause})
        return actors

    def waits(self) -> list[Wait]:
        """The starts that the run waits for."""
        now = time.monotonic()
        starting = [slot for slot in self._slots if slot.state == _STARTING]
        return [
            Wait("its start", Owner.ACTOR, now - slot.started_at, self._start_limit_s, owner_name=slot.name)
            for slot in starting
        ]

    # --- commands -----------------------------------------------------------------------------------

    async def resize(self, count: int) -> None:
        """Have `count` actors: new ones join now, the last ones leave once their prompts are done.

        Raises:
            ResourceError: the cluster has no place for all of them; then none has joined.
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
        missing = max(0, count - len(staying))
        quarantined = [slot for slot in self._slots if slot.state == _QUARANTINED]
        for slot in quarantined[:missing]:  # new ones replace them, and need their places
            self._dismiss(slot)
        for slot in await self._add(missing, _GRACE_S, "--count"):
            self._supervise_slot(slot)

    def _staying(self) -> list[ActorSlot]:
        return [slot for slot in self._slots if not slot.leaving and slot.state != _QUARANTINED]

    def drain(self, name: str) -> None:
        """Have the actor `name` finish its prompts and leave for good.

        Raises:
            UserError: there is no such actor, or it is the last one.
        """
        for slot in self._slots:
            if name == slot.name or (slot.process and name == slot.process.name):
                if self._staying() == [slot]:
                    raise UserError(f"{name} is the last actor: have others join first (actors --count), or use pause")
                return self._dismiss(slot)
        raise UserError(f"no actor {name!r} here; there are: " + ", ".join(slot.name for slot in self._slots))

    async def stop(self, deadline_s: float) -> None:
        """Have all actors give back their prompts and leave; an actor that does not leave in time is killed."""
        assert self._tasks is not None
        for slot in self._slots:
            slot.leaving = True
            if slot.process:
                self._tasks.create_task(_ask_to_leave(slot.process, {"stop": deadline_s}))
        # A slot without a process only waits for its next start.
        if tasks := [slot.task for slot in self._slots if slot.process and slot.task]:
            await asyncio.wait(tasks, timeout=deadline_s)

    def _dismiss(self, slot: ActorSlot) -> None:
        assert self._tasks is not None
        slot.leaving = True
        self._context.processes.note(slot.name, "leaving")
        if not slot.process:
            self._context.processes.note(slot.name, "ended")
        if slot.state == _QUARANTINED:
            self._remove(slot)
        elif slot.process:
            patience = {"drain": self._context.supervision.deadlines.drain_s} if slot.state == _WORKING else {}
            self._tasks.create_task(_ask_to_leave(slot.process, {**patience, "stop": _GRACE_S}))


async def _ask_to_leave(process: RemoteProcess, orders: Mapping[str, float]) -> None:
    """Send each order, and wait for its time (s). Kill an actor that obeys none."""
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
