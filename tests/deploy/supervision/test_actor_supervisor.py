"""Actors that die, hang, keep dying, join and leave."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.supervision import policies
from olmorl.deploy.supervision.actor_supervisor import ActorSupervisor
from olmorl.errors import (
    EngineDied,
    ModelError,
    OlmoRLError,
    ProcessLost,
    ResourceError,
    RunEnded,
    StartError,
    UserError,
    first_cause,
)
from olmorl.messages import ActorStatus
from olmorl.run_dir import RunFiles
from tests.waiting import HANG_S

Running = Callable[..., AbstractAsyncContextManager[ActorSupervisor]]


@pytest.fixture
def running(until: Any) -> Running:
    """Keeps a supervisor while a block runs; an error that ended it is raised at the end of the block.

    With `ends` the block waits for that error.
    """

    @asynccontextmanager
    async def run(context: Any, count: int = 3, ends: bool = False) -> AsyncIterator[ActorSupervisor]:
        supervisor = ActorSupervisor(context, QueueAccess("redis://here", {}))
        await supervisor.place(count)
        keeping = asyncio.create_task(supervisor.supervise())
        await until(lambda: len(context.cluster.started) == count)
        yield supervisor
        await asyncio.wait([keeping], timeout=HANG_S if ends else 0)
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled() and (error := keeping.exception()):
            raise first_cause(error)

    return run


async def lose_twice(made: Any, supervisor: ActorSupervisor, until: Any) -> None:
    """The first actor dies twice, and waits for its next start."""
    for name in ("actor-0", "actor-0.2"):
        await until(lambda name=name: name in made.cluster.names)
        made.cluster.newest(name).end(ProcessLost(f"{name} died"))
    await until(lambda: supervisor.slots[0].state == "waiting")


def look(supervisor: ActorSupervisor, now: float, state: str = "run", **beats: float) -> list[str]:
    """The heartbeats of the actors at time `now`; `a0_2` means actor-0.2."""
    names = {key: "actor-" + key.removeprefix("a").replace("_", ".") for key in beats}
    statuses = [ActorStatus(name=names[key], at=at, state=state, completions=1) for key, at in beats.items()]
    return supervisor.note_heartbeats(statuses, now)


async def test_a_dead_actor_is_replaced_under_a_name_of_its_own(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as supervisor:
        assert made.cluster.names == ["actor-0", "actor-1", "actor-2"]
        made.cluster.newest("actor-1").end(ProcessLost("actor-1 died: out of memory"))
        await until(lambda: "actor-1.2" in made.cluster.names)
        assert look(supervisor, 0.0, a0=1, a1=1, a1_2=1) == ["actor-1"], "it is to be buried"
        assert supervisor.num_deaths == 1
        assert made.said == ["actor-1 died: out of memory: its prompts go elsewhere, and actor-1 starts again now"]


async def test_processes_that_load_ahead_are_the_first_ones_and_nobody_before(context: Any, until: Any) -> None:
    made = context()
    supervisor = ActorSupervisor(made, QueueAccess("redis://here", {}))
    await supervisor.place(2)
    supervisor.load()
    assert made.cluster.names == ["actor-0", "actor-1"]
    assert look(supervisor, 0.0, a0=0) == ["actor-0"], "a heartbeat of an earlier start: its prompts are to be released"
    for slot in supervisor.slots:
        slot.started_at -= 10_000
    made.cluster.newest("actor-1").end(ProcessLost("actor-1 died while it loaded"))
    keeping = asyncio.create_task(supervisor.supervise())
    await until(lambda: "actor-1.2" in made.cluster.names)
    await until(lambda: ("run",) in made.cluster.newest("actor-0").calls)
    assert made.cluster.names == ["actor-0", "actor-1", "actor-1.2"]
    assert look(supervisor, 1.0, a0=1) == []
    await asyncio.sleep(0.7)
    assert not made.cluster.newest("actor-0").killed, "its start counts from when it is kept"
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_all_nodes_of_an_engine_are_listed_while_its_actor_lives(
    context: Any, running: Running, until: Any
) -> None:
    made = context()
    made.placement = dataclasses.replace(made.placement, nodes_per_engine=2)
    nodes = {"actor-0-node-1": Identity("elsewhere", 2, "10.0.0.2:9000")}
    made.cluster.answers = {"actor-0.2": {"followers": {}}, "actor-0": {"followers": nodes}}

    def listed() -> dict[str, Any]:
        there: dict[str, Any] = json.loads((made.settings.run_dir / "processes.json").read_text())
        return there

    async with running(made, count=1):
        await until(lambda: len(made.processes.targets()) == 1)
        assert listed()["actor-0-node-1"] == {"host": "elsewhere", "pid": 2}
        assert made.processes.targets()[0]["targets"] == ["10.0.0.2:9000"]
        made.cluster.newest("actor-0").end(ProcessLost("actor-0-node-1 died"))
        await until(lambda: "actor-0.2" in made.cluster.names and set(listed()) == {"actor-0"})
        assert made.processes.targets() == []


async def test_an_actor_without_heartbeat_is_ended_and_replaced(context: Any, running: Running, until: Any) -> None:
    made = context(heartbeat_s=5)
    async with running(made) as supervisor:
        for second in range(8):
            look(supervisor, second, a0=second, a1=min(second, 1), a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]
        await until(lambda: "actor-1.2" in made.cluster.names)
        assert "actor-1 has had no heartbeat for 5 s" in made.said[0]


async def test_an_actor_that_falls_silent_while_it_starts_has_longer(
    context: Any, running: Running, until: Any
) -> None:
    made = context(heartbeat_s=2, answer_s=5)
    async with running(made) as supervisor:
        for second in range(5):
            look(supervisor, second, state="starting", a0=second, a1=0, a2=second)
        assert not any(process.killed for process in made.cluster.started)
        for second in range(5, 8):
            look(supervisor, second, state="starting", a0=second, a1=0, a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]


async def test_an_actor_that_is_never_heard_of_is_ended(context: Any, running: Running, until: Any) -> None:
    made = context(heartbeat_s=2, answer_s=5)
    async with running(made) as supervisor:
        await until(lambda: all(slot.there_since for slot in supervisor.slots))
        for second in range(8):
            look(supervisor, second, a0=second, a2=second)
        assert [process.name for process in made.cluster.started if process.killed] == ["actor-1"]


async def test_who_keeps_dying_is_put_in_quarantine_and_the_others_go_on(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=2)
    async with running(made) as supervisor:
        for name in ("actor-0", "actor-0.2", "actor-0.3"):
            await until(lambda name=name: name in made.cluster.names)
            made.cluster.newest(name).end(ProcessLost(f"{name} died: bad memory"))
        await until(lambda: "quarantine" in made.said[-1])
        assert made.said[-1] == "actor-0 is in quarantine after 3 death(s), the last: actor-0.3 died: bad memory"
        (row,) = [row for row in supervisor.describe([]) if row["name"] == "actor-0"]
        assert (row["state"], row["deaths"], row["last_cause"]) == ("quarantined", 3, "actor-0.3 died: bad memory")
        assert [slot.state for slot in supervisor.slots] == ["quarantined", "starting", "starting"]
        events = map(json.loads, RunFiles(made.settings.run_dir).process_events.read_text().splitlines())
        assert [(event["state"], event.get("cause", "")) for event in events if event["process"] == "actor-0"] == [
            *(("started", ""), ("ended", ""), ("waiting", "actor-0 died: bad memory")),
            *(("started", ""), ("ended", ""), ("waiting", "actor-0.2 died: bad memory")),
            *(("started", ""), ("ended", ""), ("quarantined", "actor-0.3 died: bad memory")),
        ]
        await supervisor.resize(3)
        await until(lambda: "actor-3" in made.cluster.names)


async def test_who_got_something_done_is_started_again_as_often_as_it_dies(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=1)
    async with running(made, count=1) as supervisor:
        for start in range(1, 6):
            name = "actor-0" if start == 1 else f"actor-0.{start}"
            await until(lambda name=name: supervisor.slots[0].process and supervisor.slots[0].process.name == name)
            look(supervisor, start, **{f"a0_{start}" if start > 1 else "a0": start})
            made.cluster.newest(name).end(ProcessLost("killed"))
        await until(lambda: "actor-0.6" in made.cluster.names)
        assert supervisor.num_deaths == 5


async def test_new_actors_take_the_places_of_those_in_quarantine(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=0)
    async with running(made, count=2) as supervisor:
        made.cluster.newest("actor-0").end(ProcessLost("bad memory"))
        await until(lambda: supervisor.slots[0].state == "quarantined")
        await supervisor.resize(2)
        assert [slot.name for slot in supervisor.slots] == ["actor-1", "actor-2"]
        assert (supervisor.size, supervisor.num_quarantined) == (2, 0)
        events = map(json.loads, RunFiles(made.settings.run_dir).process_events.read_text().splitlines())
        states = [event["state"] for event in events if event["process"] == "actor-0"]
        assert states == ["started", "ended", "quarantined", "leaving", "ended"]


async def test_with_all_in_quarantine_the_run_ends_with_the_causes(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=0)
    with pytest.raises(RunEnded, match=r"every actor is in quarantine: actor-0 \(quarantined\): no driver; actor-1"):
        async with running(made, count=2, ends=True):
            for process in list(made.cluster.started):
                process.end(ProcessLost("no driver"))
            await until(lambda: len(made.said) == 2)


@pytest.mark.parametrize("error", [ModelError("no config.json"), StartError("SafetensorError: half a header")])
async def test_what_people_have_to_mend_is_not_tried_again(
    context: Any, running: Running, until: Any, error: OlmoRLError
) -> None:
    made = context(restarts=5)
    with pytest.raises(type(error), match=str(error)):
        async with running(made, count=1, ends=True):
            made.cluster.newest("actor-0").end(error)
            await until(lambda: made.said)
    assert made.cluster.names == ["actor-0"]


async def test_an_engine_that_fails_at_two_starts_with_one_error_is_not_started_a_third_time(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=50)
    with pytest.raises(RunEnded, match=r"every actor is in quarantine.*did not start: RuntimeError: no kernel 7"):
        async with running(made, count=1, ends=True):
            made.cluster.newest("actor-0").end(EngineDied("the engine did not start: RuntimeError: no kernel 6"))
            await until(lambda: "actor-0.2" in made.cluster.names)
            made.cluster.newest("actor-0.2").end(EngineDied("the engine did not start: RuntimeError: no kernel 7"))
            await until(lambda: len(made.said) == 2)
    assert made.cluster.names == ["actor-0", "actor-0.2"]


async def test_the_same_error_of_engines_that_were_up_is_no_reason_to_give_up(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=50)
    async with running(made, count=1) as supervisor:
        for number, name in enumerate(["actor-0", "actor-0.2", "actor-0.3"], 1):
            await until(lambda name=name: name in made.cluster.names)
            await until(lambda: supervisor.slots[0].there_since)
            supervisor.note_heartbeats([ActorStatus(name=name, at=number, state="run")], number)
            made.cluster.newest(name).end(ProcessLost(f"{name} failed: RuntimeError('a prompt that kills')"))
        await until(lambda: "actor-0.4" in made.cluster.names)


async def test_an_actor_that_is_lost_after_a_stop_is_not_started_again(
    context: Any, running: Running, until: Any
) -> None:
    made = context(restarts=5, no_actor_s=0.01)
    async with running(made, count=2) as supervisor:
        supervisor.stopping = True
        made.cluster.newest("actor-0").end(ProcessLost("actor-0 died"))
        await until(lambda: len(supervisor.slots) == 1)
        await asyncio.sleep(0.05)
        assert made.cluster.names == ["actor-0", "actor-1"] and made.said == []


async def test_without_anybody_at_work_the_run_ends_in_time(context: Any, running: Running, until: Any) -> None:
    made = context(no_actor_s=0.2, restarts=1000)
    made.cluster.answers["actor-0."] = {"identity": ProcessLost("it does not come up")}
    with pytest.raises(RunEnded, match=r"no actor has worked for \d s: actor-0 \(\w+\): it does not"):
        async with running(made, count=1, ends=True) as supervisor:
            look(supervisor, time.monotonic(), a0=1)
            made.cluster.newest("actor-0").end(ProcessLost("killed"))


async def test_no_actor_is_judged_while_heartbeats_cannot_be_read(
    context: Any, running: Running, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "LONGEST_GAP_S", 0.7)
    made = context(no_actor_s=2)
    async with running(made, count=2) as supervisor:
        look(supervisor, time.monotonic(), a0=1, a1=1)
        for name in ("actor-0", "actor-1"):
            made.cluster.newest(name).end(ProcessLost("killed"))
        await until(lambda: {"actor-0.2", "actor-1.2"} <= set(made.cluster.names))
        await asyncio.sleep(1.0)
        supervisor.slots[0].started_at -= 1e6
        await asyncio.sleep(2.5)
        assert not any(process.killed for process in made.cluster.started[2:]), "they may still be running"
        look(supervisor, time.monotonic(), a0_2=1, a1_2=1)
        await asyncio.sleep(0.6)


async def test_the_run_ends_when_all_actors_are_quarantined(context: Any, running: Running, until: Any) -> None:
    made = context(restarts=0)
    with pytest.raises(RunEnded, match=r"every actor is in quarantine: actor-1 \(quarantined\): no driver"):
        async with running(made, count=2, ends=True) as supervisor:
            leaving, other = (made.cluster.newest(name) for name in ("actor-0", "actor-1"))
            supervisor.drain("actor-0")
            other.end(ProcessLost("no driver"))
            await until(lambda: supervisor.slots[1].state == "quarantined")
            leaving.end()


async def test_a_wait_for_a_host_does_not_count_as_a_start_that_took_long(context: Any, running: Running) -> None:
    made = context(no_actor_s=0.2, restarts=1000)
    made.cluster.answers["actor-0."] = {"identity": ProcessLost("it does not come up")}
    with pytest.raises(RunEnded, match="no actor has worked"):
        async with running(made, count=1, ends=True) as supervisor:
            supervisor.slots[0].started_at -= 1000
            look(supervisor, time.monotonic(), a0=1)
            made.cluster.newest("actor-0").end(ProcessLost("killed"))


async def test_joining_and_leaving(context: Any, running: Running, until: Any) -> None:
    made = context()
    made.cluster.room = 4
    async with running(made, count=2) as supervisor:
        await supervisor.resize(4)
        await until(lambda: len(made.cluster.started) == 4)
        with pytest.raises(ResourceError, match="no room"):
            await supervisor.resize(5)
        assert supervisor.size == 4
        look(supervisor, 0.0, a0=1, a1=1, a2=1, a3=1)
        leaving = [made.cluster.newest(name) for name in ("actor-1", "actor-2", "actor-3")]
        for process in leaving:
            process.answers["drain"] = process.end
        await supervisor.resize(2)
        supervisor.drain("actor-1")
        await until(lambda: [slot.name for slot in supervisor.slots] == ["actor-0"])
        assert all(("drain",) in process.calls for process in leaving)
        assert made.cluster.room == 3, "their places are free"
        assert supervisor.num_deaths == 0
        with pytest.raises(UserError, match="no actor 'actor-7' here; there are: actor-0"):
            supervisor.drain("actor-7")


async def test_a_count_that_the_cluster_has_no_room_for_changes_nothing(
    context: Any, running: Running, until: Any
) -> None:
    made = context()
    made.cluster.room = 5
    async with running(made, count=2) as supervisor:
        with pytest.raises(ResourceError, match="no room for an engine: ask for fewer with --count"):
            await supervisor.resize(1000)
        assert [slot.name for slot in supervisor.slots] == ["actor-0", "actor-1"]
        assert made.cluster.room == 3 and len(made.cluster.started) == 2


async def test_a_count_beyond_all_room_is_refused_without_asking_for_it(context: Any, running: Running) -> None:
    made = context()
    made.cluster.most_engines = 2
    async with running(made, count=3) as supervisor:
        with pytest.raises(ResourceError, match="--count 100000: this run can have 3"):
            await supervisor.resize(100_000)
        await supervisor.resize(3)
        assert made.cluster.num_asked == 3


async def test_who_starts_again_has_no_name_to_be_drained_by(context: Any, running: Running, until: Any) -> None:
    made = context(RESTART_PAUSE_S=60, LONGEST_RESTART_PAUSE_S=60)
    async with running(made, count=2) as supervisor:
        await lose_twice(made, supervisor, until)
        with pytest.raises(UserError, match="no actor '' here"):
            supervisor.drain("")


async def test_the_last_actor_is_not_drained(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made, count=2) as supervisor:
        look(supervisor, 0.0, a0=1, a1=1)
        made.cluster.newest("actor-0").answers["drain"] = made.cluster.newest("actor-0").end
        supervisor.drain("actor-0")
        with pytest.raises(UserError, match="actor-1 is the last actor"):
            supervisor.drain("actor-1")
        await until(lambda: [slot.name for slot in supervisor.slots] == ["actor-1"])
        with pytest.raises(UserError, match="actor-1 is the last actor"):
            supervisor.drain("actor-1")


async def test_at_the_end_all_give_back_what_they_have(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as supervisor:
        for process in made.cluster.started[:2]:
            process.answers["stop"] = process.end
        await supervisor.stop(0.2)
        assert [slot.name for slot in supervisor.slots] == ["actor-2"], "it does not obey"
        assert all(("stop",) in process.calls for process in made.cluster.started)
        assert len(made.cluster.started) == 3


async def test_the_end_does_not_wait_for_actors_that_would_start_later(
    context: Any, running: Running, until: Any
) -> None:
    made = context(RESTART_PAUSE_S=60, LONGEST_RESTART_PAUSE_S=60)
    async with running(made, count=1) as supervisor:
        await lose_twice(made, supervisor, until)
        await asyncio.wait_for(supervisor.stop(50.0), 5.0)


async def test_two_commands_at_once_are_both_carried_out(context: Any, running: Running, until: Any) -> None:
    made = context()
    async with running(made) as supervisor:
        place = made.cluster.place_engine

        async def take_time(*args: Any) -> object:
            await asyncio.sleep(0.01)
            return await place(*args)

        made.cluster.place_engine = take_time
        await asyncio.gather(supervisor.resize(5), supervisor.resize(5))
        assert len(supervisor.slots) == 5
