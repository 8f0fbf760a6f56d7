"""An actor without new weights: how far behind it may work, when others do its work, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from olmorl import config
from olmorl.actors.fake_engine import FakeEngine
from olmorl.actors.staleness import GRACE_S, LagWatch
from olmorl.clock import run_simulated
from olmorl.errors import DeadlinePassed, WeightError, WeightsDamaged
from olmorl.messages import Version
from olmorl.ports import StagedWeights
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0, update_s=0.5)
"""Every answer takes 100 tokens, 10 s."""
DEADLINE_S = 60.0


def v(number: int, incarnation: int = 1) -> Version:
    return Version(incarnation, number)


class CutOff:
    """The versions of another shelf, over a link that can be cut, or change bytes."""

    def __init__(self, shelf: Any) -> None:
        self.shelf = shelf
        self.cut = False

    def latest(self) -> Version | None:
        if self.cut == "wholly":
            raise WeightError("the board did not answer")
        return self.shelf.latest()  # type: ignore[no-any-return]

    def fetch(self, version: Version) -> StagedWeights:
        if self.cut == "damaged":
            raise WeightsDamaged(f"version {version}: chunk 4 of 9 is not what was published")
        if self.cut:
            raise WeightError(f"version {version}: chunks from 4 of 9 did not come")
        return self.shelf.fetch(version)  # type: ignore[no-any-return]


def test_within_max_lag_an_engine_may_stay_for_ever() -> None:
    watch = LagWatch("a0", max_lag=2, deadline_s=60)
    watch.note_versions(0.0, v(2), v(0))
    assert not watch.trails(1e6)
    watch.check(1e6, "")


def test_beyond_max_lag_it_trails_after_a_grace_and_ends_after_the_deadline() -> None:
    watch = LagWatch("a0", max_lag=2, deadline_s=60)
    watch.note_versions(10.0, v(3), v(0))
    watch.note_versions(40.0, v(4), v(1))
    assert not watch.trails(10.0 + GRACE_S)
    assert watch.trails(10.1 + GRACE_S)
    watch.check(70.0, "")
    with pytest.raises(DeadlinePassed, match=r"60 s for weights 1\.4 .* a0 has 1\.1, more than max_lag = 2 .*: no"):
        watch.check(70.1, "no link")


@pytest.mark.parametrize(("newest", "engine"), [(v(4), v(2)), (v(4), v(4)), (None, v(0))])
def test_it_has_caught_up_within_max_lag_or_when_there_is_nothing_to_catch(newest: Version, engine: Version) -> None:
    watch = LagWatch("a0", max_lag=2, deadline_s=60)
    watch.note_versions(0.0, v(3), v(0))
    watch.note_versions(50.0, newest, engine)
    assert not watch.trails(1e6)
    watch.check(1e6, "")


def test_weights_of_another_start_of_the_learner_are_any_distance_away() -> None:
    watch = LagWatch("a0", max_lag=5, deadline_s=60)
    watch.note_versions(0.0, v(3, incarnation=2), v(3))
    assert watch.trails(10.0)


def test_a_prompt_tells_of_versions_the_store_did_not_name() -> None:
    watch = LagWatch("a0", max_lag=1, deadline_s=60)
    watch.note_versions(0.0, v(1), v(0))
    watch.note_prompt(1.0, v(1), v(0))
    assert not watch.trails(100.0)
    watch.note_prompt(2.0, v(2), v(0))
    assert watch.trails(100.0)


def test_an_unpublished_version_has_no_deadline_but_the_actor_trails() -> None:
    watch = LagWatch("a0", max_lag=4, deadline_s=60)
    watch.note_versions(0.0, None, v(0, 0))
    assert not watch.trails(100.0), "nobody asks for anything"
    watch.note_prompt(100.0, v(7), v(0, 0))
    watch.note_prompt(101.0, v(5), v(0, 0))
    watch.note_versions(102.0, None, v(0, 0))
    assert not watch.trails(100.0 + GRACE_S)
    assert watch.trails(5000.0)
    watch.check(5000.0, "")
    watch.note_versions(5000.0, v(9, 2), v(0, 0))
    assert not watch.trails(5000.0 + GRACE_S), "from here on it is the engine's time"
    watch.check(5060.0, "")
    with pytest.raises(DeadlinePassed, match=r"weights 2\.9"):
        watch.check(5060.1, "")


@pytest.mark.parametrize("newest", [v(9), v(10)])
def test_what_was_asked_for_before_the_place_of_publication_was_lost_is_known_after_that(newest: Version) -> None:
    watch = LagWatch("a0", max_lag=4, deadline_s=60)
    watch.note_versions(0.0, newest, v(9))
    watch.note_prompt(1.0, v(10), v(9))
    assert not watch.trails(10.0), "an update is on its way"
    watch.note_versions(20.0, None, v(9))
    assert not watch.trails(20.0 + GRACE_S)
    assert watch.trails(20.1 + GRACE_S)
    watch.check(1e6, "")


def test_an_engine_that_has_what_is_asked_for_works_on_while_nothing_is_published() -> None:
    watch = LagWatch("a0", max_lag=4, deadline_s=60)
    watch.note_versions(0.0, v(7), v(7))
    watch.note_versions(1.0, None, v(7))
    assert not watch.trails(1e6)


async def learn(s: Any, draw: Make, steps: int) -> None:
    """A version every 5 s, and four prompts that ask for it."""
    for number in range(1, steps + 1):
        await asyncio.sleep(5.0)
        s.shelf.publish(v(number))
        await s.push(*(draw(4 * number + i, min_version=v(number)) for i in range(4)))


def settings() -> config.Actors:
    return config.Actors(max_running=16, stall_deadline_s=DEADLINE_S)


@pytest.mark.parametrize("cut", [True, "wholly"])
def test_an_actor_that_stays_behind_gives_its_work_to_others_and_ends_with_the_cause(
    service: Make, draw: Make, cut: Any
) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, settings=settings(), max_lag=1)
        link = CutOff(s.shelf)
        await s.queue.claim(1)
        behind = asyncio.create_task(s.actor("behind", shelf=link).run())
        ahead = asyncio.create_task(s.actor("ahead").run())
        await asyncio.sleep(1.0)
        link.cut = cut
        await learn(s, draw, 4)
        groups = await s.results(16)
        started = s.clock.now()
        leased = (await s.queue.counts("train")).leased
        with pytest.raises(DeadlinePassed, match=r"weights 1\.\d of the learner; the engine of behind has 1\.0, more"):
            await behind
        ended = s.clock.now()
        ahead.cancel()
        return groups, leased, started, ended

    groups, leased, started, ended = run_simulated(scenario())
    assert {group.actor for group in groups} == {"ahead"}
    assert {group.prompt.attempt for group in groups} == {1}, "given back unharmed"
    assert leased == 0
    assert started < ended < 10.0 + 2 * DEADLINE_S


def test_an_actor_that_catches_up_works_again(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, settings=settings(), max_lag=1)
        link = CutOff(s.shelf)
        async with s.running(s.actor("a0", shelf=link)):
            await asyncio.sleep(1.0)
            link.cut = True
            await learn(s, draw, 4)
            await asyncio.sleep(15.0)
            idle = await s.queue.counts("train")
            link.cut = False
            groups = await s.results(16)
            return idle, groups

    idle, groups = run_simulated(scenario())
    assert (idle.queued, idle.leased, idle.results) == (16, 0, 0)
    assert {group.prompt.attempt for group in groups} == {1}
    assert {completion.oldest for group in groups for completion in group.completions} == {v(4)}


def test_what_has_begun_goes_on_while_the_engine_trails(service: Make, draw: Make) -> None:
    slow = Simulation(tokens_per_s=5, batch_slowdown=0, mean_tokens=200, tail=0)

    async def scenario() -> Any:
        s = service(simulation=slow, settings=settings(), max_lag=1)
        link = CutOff(s.shelf)
        await s.push(draw(0))
        async with s.running(s.actor("a0", shelf=link)):
            await asyncio.sleep(1.0)
            link.cut = True
            for number in range(1, 5):
                s.shelf.publish(v(number))
            (group,) = await s.results(1)
            link.cut = False
            return group

    group = run_simulated(scenario())
    assert {completion.oldest for completion in group.completions} == {v(0)}


@pytest.mark.parametrize("newest", [v(1), v(5), v(1, incarnation=2)])
def test_a_drain_may_take_longer_than_the_stall_deadline(service: Make, draw: Make, newest: Version) -> None:
    slow = Simulation(tokens_per_s=1, batch_slowdown=0, mean_tokens=200, tail=0, update_s=0.5)
    drains = config.Actors(max_running=16, stall_deadline_s=DEADLINE_S, weight_update="drain")

    async def scenario() -> Any:
        s = service(simulation=slow, settings=drains, max_lag=1)
        await s.push(draw(0))
        async with s.running(s.actor("a0")):
            await asyncio.sleep(1.0)
            await s.push(draw(1, min_version=newest))
            s.shelf.publish(newest)
            await asyncio.sleep(2.0)
            draining = await s.queue.counts("train")
            groups = await s.results(2)
            return draining, groups, await s.queue.statuses()

    draining, (before, after), statuses = run_simulated(scenario())
    assert before.finished_at - before.started_at > 3 * DEADLINE_S
    assert (draining.queued, draining.leased) == (1, 1), "another actor may take what waits for the version"
    assert {one.oldest for one in before.completions} == {v(0)}
    assert {one.oldest for one in after.completions} == {newest} and after.prompt.attempt == 1
    assert after.started_at - before.finished_at < 1.0
    assert statuses["a0"].updates == 1


class NeverDrained(FakeEngine):
    """Its scheduler never says that it is empty."""

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


def test_a_drain_that_never_ends_although_nothing_runs_ends_the_actor(service: Make) -> None:
    drains = config.Actors(max_running=16, stall_deadline_s=DEADLINE_S, weight_update="drain")

    async def scenario() -> float:
        s = service(settings=drains)
        actor = s.actor("a0", NeverDrained(s.simulation, max_running=16, max_model_len=500))
        running = asyncio.create_task(actor.run())
        await asyncio.sleep(2 * DEADLINE_S)
        s.shelf.publish(v(1))
        started = s.clock.now()
        with pytest.raises(DeadlinePassed, match=r"60 s for a token from the engine of a0, .* 0 sequences and drains"):
            await running
        return float(s.clock.now() - started)

    assert DEADLINE_S < run_simulated(scenario()) < DEADLINE_S + 5


def test_a_board_that_is_away_for_a_while_ends_nobody(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, settings=settings(), max_lag=1)
        link = CutOff(s.shelf)
        link.cut = "wholly"
        async with s.running(s.actor("a0", shelf=link)):
            await asyncio.sleep(20.0)
            starting = (await s.queue.statuses())["a0"].state
            link.cut = False
            await s.push(draw(0))
            await s.results(1)
            link.cut = "wholly"
            await asyncio.sleep(3 * DEADLINE_S)
            link.cut = False
            s.shelf.publish(v(1))
            await s.push(draw(1, min_version=v(1)))
            await s.results(1)
            return starting, (await s.queue.statuses())["a0"]

    starting, status = run_simulated(scenario())
    assert starting == "starting"
    assert (status.version, status.updates) == (v(1), 1)
    assert status.update_failures > 10


def test_a_version_that_is_damaged_where_it_lies_is_reported_and_its_prompts_go_to_others(
    service: Make, draw: Make
) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, settings=settings(), max_lag=1)
        link = CutOff(s.shelf)
        async with s.running(s.actor("a0", shelf=link)):
            await asyncio.sleep(3.0)
            link.cut = "damaged"
            before = (await s.queue.statuses())["a0"].damaged
            s.shelf.publish(v(1))
            await s.push(draw(0, min_version=v(1)))
            await asyncio.sleep(10.0)
            status, counts = (await s.queue.statuses())["a0"], await s.queue.counts("train")
            s.shelf.publish(v(2))
            link.cut = False
            await s.results(1)
            return before, status, counts, (await s.queue.statuses())["a0"]

    before, damaged, counts, healed = run_simulated(scenario())
    assert (before, damaged.damaged, healed.damaged) == (None, v(1), None)
    assert (counts.queued, counts.leased) == (1, 0), "given back long before the deadline"
    assert healed.version == v(2)
