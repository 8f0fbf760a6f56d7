"""Actors that die, hang, keep dying, join and leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from olmorl.deploy import vigil
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.fleet import Fleet
from olmorl.errors import ModelError, ProcessLost, ResourceError, RunEnded, UserError, first_cause
from olmorl.messages import ActorStatus

Running = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture
def running(until: Any) -> Running:
    """Keeps a fleet while a block runs; an error that ended it is raised at the end of the block."""

    @asynccontextmanager
    async def run(context: Any, count: int = 3) -> AsyncIterator[Fleet]:
        fleet = Fleet(context, QueueAccess("redis://here", {}))
        await fleet.place(count)
        keeping = asyncio.create_task(fleet.keep())
        await until(lambda: len(context.cluster.started) == count)
        yield fleet
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled() and (error := keeping.exception()):
            raise first_cause(error)

    return run


def look(fleet: Fleet, now: float, state: str = "run", **beats: float) -> list[str]:
    """A look at the heartbeats of actors at time `now`; `a0_2` stands for actor-0.2."""
    names = {key: "actor-" + key.removeprefix("a").replace("_", ".") for key in beats}
    statuses = [ActorStatus(name=names[key], at=at, state=state, completions=1) for key, at in beats.items()]
    return fleet.look(statuses, now)


async def test_a_dead_actor_is_replaced_under_a_name_of_its_own(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as fleet:
        assert made.cluster.names == ["actor-0", "actor-1", "actor-2"]
        made.cluster.newest("actor-1").end(ProcessLost("actor-1 died: out of memory"))
        await until(lambda: "actor-1.2" in made.cluster.names)
        assert look(fleet, 0.0, a0=1, a1=1, a1_2=1) == ["actor-1"], "it is to be buried"
        assert fleet.num_deaths == 1
        assert made.said == ["actor-1 died: out of memory: its prompts go elsewhere, and actor-1 starts again now"]


async def test_an_actor_without_heartbeat_is_ended_and_replaced(context: Any, running: Running, until: Any) -> None:
    made = context(heartbeat_deadline_s=5)
    async with running(made) as fleet:
        for second in range(8):
            look(fleet, second, a0=second, a1=min(second, 1), a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]
        await until(lambda: "actor-1.2" in made.cluster.names)
        assert "actor-1 has had no heartbeat for 5 s" in made.said[0]


async def test_an_actor_that_falls_silent_while_it_starts_has_longer(
    context: Any, running: Running, until: Any
) -> None:
    made = context(heartbeat_deadline_s=2, answer_deadline_s=5)
    async with running(made) as fleet:
        for second in range(5):
            look(fleet, second, state="starting", a0=second, a1=0, a2=second)
        assert not any(process.killed for process in made.cluster.started)
        for second in range(5, 8):
            look(fleet, second, state="starting", a0=second, a1=0, a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]


async def test_an_actor_that_is_never_heard_of_is_ended(context: Any, running: Running, until: Any) -> None:
    made = context(heartbeat_deadline_s=2, answer_deadline_s=5)
    async with running(made) as fleet:
        await until(lambda: all(slot.there_since for slot in fleet.slots))
        for second in range(8):
            look(fleet, second, a0=second, a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]


async def test_who_keeps_dying_is_put_in_quarantine_and_the_others_go_on(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=2)
    async with running(made) as fleet:
        for name in ("actor-0", "actor-0.2", "actor-0.3"):
            await until(lambda name=name: name in made.cluster.names)
            made.cluster.newest(name).end(ProcessLost(f"{name} died: bad memory"))
        await until(lambda: "quarantine" in made.said[-1])
        assert made.said[-1] == "actor-0 is in quarantine after 3 death(s), the last: actor-0.3 died: bad memory"
        assert fleet.troubles() == ["actor-0: quarantined after 3 death(s): actor-0.3 died: bad memory"]
        assert [slot.state for slot in fleet.slots] == ["quarantined", "starting", "starting"]
        await fleet.resize(3)
        await until(lambda: "actor-3" in made.cluster.names)


async def test_who_got_something_done_is_started_again_as_often_as_it_dies(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=1)
    async with running(made, count=1) as fleet:
        for start in range(1, 6):
            name = "actor-0" if start == 1 else f"actor-0.{start}"
            await until(lambda name=name: fleet.slots[0].process and fleet.slots[0].process.name == name)
            look(fleet, start, **{f"a0_{start}" if start > 1 else "a0": start})
            made.cluster.newest(name).end(ProcessLost("killed"))
        await until(lambda: "actor-0.6" in made.cluster.names)
        assert fleet.num_deaths == 5


async def test_with_all_in_quarantine_the_run_ends_with_the_causes(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=0)
    with pytest.raises(RunEnded, match=r"every actor is in quarantine: actor-0 \(quarantined\): no driver; actor-1"):
        async with running(made, count=2):
            for process in list(made.cluster.started):
                process.end(ProcessLost("no driver"))
            await until(lambda: len(made.said) == 2)


async def test_what_people_have_to_mend_is_not_tried_again(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=5)
    with pytest.raises(ModelError, match=r"no config\.json"):
        async with running(made, count=1):
            made.cluster.newest("actor-0").end(ModelError("no config.json"))
            await until(lambda: made.said)


async def test_without_anybody_at_work_the_run_ends_in_time(context: Any, running: Running, until: Any) -> None:
    made = context(no_actor_deadline_s=0.2, restarts=1000)
    made.cluster.answers["actor-0."] = {"who": ProcessLost("it does not come up")}
    with pytest.raises(RunEnded, match=r"no actor has been at work for \d s: actor-0 \(\w+\): it does not"):
        async with running(made, count=1) as fleet:
            look(fleet, time.monotonic(), a0=1)
            made.cluster.newest("actor-0").end(ProcessLost("killed"))
            await asyncio.sleep(1.5)


async def test_while_nobody_can_look_who_works_is_not_judged(
    context: Any, running: Running, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vigil, "LONGEST_GAP_S", 0.7)
    made = context(no_actor_deadline_s=2)
    async with running(made, count=2) as fleet:
        look(fleet, time.monotonic(), a0=1, a1=1)
        for name in ("actor-0", "actor-1"):
            made.cluster.newest(name).end(ProcessLost("killed"))
        await until(lambda: {"actor-0.2", "actor-1.2"} <= set(made.cluster.names))
        await asyncio.sleep(1.0)
        fleet.slots[0].started_at -= 1e6
        await asyncio.sleep(2.5)
        assert not any(process.killed for process in made.cluster.started[2:]), "they may well be at work"
        look(fleet, time.monotonic(), a0_2=1, a1_2=1)
        await asyncio.sleep(0.6)


async def test_with_nobody_but_the_quarantined_left_the_run_ends(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=0)
    with pytest.raises(RunEnded, match=r"every actor is in quarantine: actor-1 \(quarantined\): no driver"):
        async with running(made, count=2) as fleet:
            leaving, other = (made.cluster.newest(name) for name in ("actor-0", "actor-1"))
            fleet.drain("actor-0")
            other.end(ProcessLost("no driver"))
            await until(lambda: fleet.slots[1].state == "quarantined")
            leaving.end()
            await asyncio.sleep(1.5)


async def test_a_wait_for_a_host_does_not_count_as_a_start_that_took_long(context: Any, running: Running) -> None:
    made = context(no_actor_deadline_s=0.2, restarts=1000)
    made.cluster.answers["actor-0."] = {"who": ProcessLost("it does not come up")}
    with pytest.raises(RunEnded, match="no actor has been at work"):
        async with running(made, count=1) as fleet:
            fleet.slots[0].started_at -= 1000
            look(fleet, time.monotonic(), a0=1)
            made.cluster.newest("actor-0").end(ProcessLost("killed"))
            await asyncio.sleep(1.5)


async def test_joining_and_leaving(context: Any, running: Running, until: Any) -> None:
    made = context()
    made.cluster.room = 4
    async with running(made, count=2) as fleet:
        await fleet.resize(4)
        await until(lambda: len(made.cluster.started) == 4)
        with pytest.raises(ResourceError, match="no room"):
            await fleet.resize(5)
        assert fleet.size == 4
        look(fleet, 0.0, a0=1, a1=1, a2=1, a3=1)
        leaving = [made.cluster.newest(name) for name in ("actor-1", "actor-2", "actor-3")]
        for process in leaving:
            process.answers["drain"] = process.end
        await fleet.resize(2)
        fleet.drain("actor-1")
        await until(lambda: [slot.name for slot in fleet.slots] == ["actor-0"])
        assert all(("drain",) in process.calls for process in leaving)
        assert made.cluster.room == 3, "their places are free"
        assert fleet.num_deaths == 0
        with pytest.raises(UserError, match="no actor 'actor-7' here; there are: actor-0"):
            fleet.drain("actor-7")


async def test_a_count_that_the_cluster_has_no_room_for_changes_nothing(
    context: Any, running: Running, until: Any
) -> None:
    made = context()
    made.cluster.room = 5
    async with running(made, count=2) as fleet:
        with pytest.raises(ResourceError, match="no room for an engine: ask for fewer with --count"):
            await fleet.resize(1000)
        assert [slot.name for slot in fleet.slots] == ["actor-0", "actor-1"]
        assert made.cluster.room == 3 and len(made.cluster.started) == 2


async def test_a_count_beyond_all_room_is_refused_without_asking_for_it(context: Any, running: Running) -> None:
    made = context()
    made.cluster.most_engines = 2
    async with running(made, count=3) as fleet:
        with pytest.raises(ResourceError, match="--count 100000: this run can have 3"):
            await fleet.resize(100_000)
        await fleet.resize(3)
        assert made.cluster.num_asked == 3


async def test_who_starts_again_has_no_name_to_be_drained_by(context: Any, running: Running, until: Any) -> None:
    made = context(backoff_s=60, longest_backoff_s=60)
    async with running(made, count=2) as fleet:
        for name in ("actor-0", "actor-0.2"):
            await until(lambda name=name: name in made.cluster.names)
            made.cluster.newest(name).end(ProcessLost(f"{name} died"))
        await until(lambda: fleet.slots[0].state == "waiting")
        with pytest.raises(UserError, match="no actor '' here"):
            fleet.drain("")


async def test_the_last_actor_is_not_drained(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made, count=2) as fleet:
        look(fleet, 0.0, a0=1, a1=1)
        made.cluster.newest("actor-0").answers["drain"] = made.cluster.newest("actor-0").end
        fleet.drain("actor-0")
        with pytest.raises(UserError, match="actor-1 is the last actor"):
            fleet.drain("actor-1")
        await until(lambda: [slot.name for slot in fleet.slots] == ["actor-1"])
        with pytest.raises(UserError, match="actor-1 is the last actor"):
            fleet.drain("actor-1")


async def test_at_the_end_all_give_back_what_they_have(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as fleet:
        for process in made.cluster.started[:2]:
            process.answers["stop"] = process.end
        await fleet.stop(0.2)
        assert [slot.name for slot in fleet.slots] == ["actor-2"], "it does not obey"
        assert all(("stop",) in process.calls for process in made.cluster.started)
        assert len(made.cluster.started) == 3


async def test_two_who_ask_at_once_get_what_they_ask_for(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as fleet:
        place = made.cluster.place_engine

        async def take_time(*args: Any) -> object:
            await asyncio.sleep(0.01)
            return await place(*args)

        made.cluster.place_engine = take_time
        await asyncio.gather(fleet.resize(5), fleet.resize(5))
        assert len(fleet.slots) == 5
