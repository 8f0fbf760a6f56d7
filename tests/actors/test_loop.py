"""The whole actor in simulated time: commits, weight updates, counts, returned leases and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.actors.fake_engine import FakeEngine, FakeScorer
from olmorl.actors.leased_groups import LeasedGroup, place_in_engine
from olmorl.clock import run_simulated
from olmorl.errors import DeadlinePassed, Unscorable
from olmorl.messages import Completion, Failure, Group, Lease, Prompt, Result, TokenIds, Verdict, Version
from olmorl.ports import CommitOutcome, QueuePlace, Sampling
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0, update_s=0.5)
"""Every answer takes 100 tokens, 10 s."""


async def until(condition: Callable[[], Any], within_s: float = 200) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.05)


def test_a_leased_group_is_committed_whole_and_scored(service: Make, draw: Make) -> None:
    async def scenario() -> Sequence[Any]:
        s = service()
        await s.push(*(draw(i) for i in range(10)))
        async with s.running(s.actor()):
            results = await s.results(10)
            counts = await s.queue.counts("train")
        return results, counts

    results, counts = run_simulated(scenario())
    assert sorted(group.prompt.draw_id for group in results) == list(range(10))
    assert (counts.queued, counts.leased, counts.results) == (0, 0, 10)
    for group in results:
        assert isinstance(group, Group)
        assert group.actor == "a0"
        assert [c.index for c in group.completions] == [0, 1, 2, 3]
        assert all(c.verdicts["math"].reward == c.reward for c in group.completions)
        assert group.finished_at - group.started_at > max(len(c.token_ids) for c in group.completions) / 50


def test_the_same_draw_and_attempt_is_sampled_the_same_on_any_actor(service: Make, draw: Make) -> None:
    async def sample(name: str) -> list[list[int]]:
        s = service()
        await s.push(draw(3))
        async with s.running(s.actor(name)):
            (group,) = await s.results(1)
        return [c.token_ids.tolist() for c in group.completions]

    first, again = run_simulated(sample("a0")), run_simulated(sample("a1"))
    assert first == again
    assert len({tuple(ids) for ids in first}) > 1


def test_an_update_is_applied_while_answers_grow_and_labels_their_tokens(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(draw(0))
        async with s.running(s.actor()):
            await asyncio.sleep(4.0)
            s.shelf.publish(Version(1, 1))
            (group,) = await s.results(1)
            status = (await s.queue.statuses())["a0"]
        return group, status

    group, status = run_simulated(scenario())
    for completion in group.completions:
        old, new = completion.spans
        assert (old.version, new.version) == (Version(1, 0), Version(1, 1))
        assert (old.start, old.end, new.end) == (0, new.start, 100)
        assert 35 <= new.start <= 45
    assert (status.updates, status.version) == (1, Version(1, 1))
    assert status.stall_s_max == status.stall_s_total == pytest.approx(0.5)


def test_a_learner_that_went_back_is_followed_to_the_smaller_number(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        s.shelf.publish(Version(1, 9))
        async with s.running(s.actor()):
            await until(lambda: s.engines["a0"].version == Version(1, 9))
            s.shelf.publish(Version(2, 4))
            await s.push(draw(0, min_version=Version(1, 7)), draw(1, min_version=Version(2, 4)))
            return await s.results(2)

    for group in run_simulated(scenario()):
        assert {c.oldest for c in group.completions} == {Version(2, 4)}


def test_a_prompt_for_a_later_version_waits_for_it(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(draw(0, min_version=Version(1, 1)), draw(1))
        async with s.running(s.actor()):
            (early,) = await s.results(1)
            s.shelf.publish(Version(1, 1))
            (late,) = await s.results(1)
        return early, late

    early, late = run_simulated(scenario())
    assert (early.prompt.draw_id, late.prompt.draw_id) == (1, 0)
    assert {c.oldest for c in late.completions} == {Version(1, 1)}


def test_a_version_that_never_comes_ends_the_actor_with_its_name(service: Make, draw: Make) -> None:
    async def scenario() -> None:
        s = service(settings=config.Actors(stall_deadline_s=30))
        await s.push(draw(0, min_version=Version(1, 5)))
        await s.actor().run()

    with pytest.raises(DeadlinePassed, match=r"waited 30 s for weights 1\.5 of the learner; the engine of a0 has 1\.0"):
        run_simulated(scenario())


def test_a_corrupt_version_is_never_applied_and_the_next_one_is(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        s.shelf.corrupt.add(Version(1, 1))
        async with s.running(s.actor()):
            await asyncio.sleep(1.0)
            s.shelf.publish(Version(1, 1))
            await s.push(draw(0))
            await s.results(1)
            tries = s.shelf.fetched.count(Version(1, 1))
            before = s.engines["a0"].version
            s.shelf.publish(Version(1, 2))
            await until(lambda: s.engines["a0"].version == Version(1, 2))
            await asyncio.sleep(1.0)
            status = (await s.queue.statuses())["a0"]
        return tries, before, status

    tries, before, status = run_simulated(scenario())
    assert before == Version(1, 0)
    assert 3 <= tries <= 10
    assert (status.updates, status.update_failures >= tries) == (1, True)


def test_a_lost_lease_cancels_its_answers_and_counts_them_as_waste(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(draw(0))
        async with s.running(s.actor()):
            await asyncio.sleep(3.0)
            await s.queue.set_control("a0", "pause")
            await asyncio.sleep(1.5)
            assert await s.queue.release_dead_actor("a0") == 1
            await until(lambda: s.engines["a0"].load().running == 0, within_s=6)
            await asyncio.sleep(1.0)
            status = (await s.queue.statuses())["a0"]
            place = await s.queue.inventory("train")
        return status, place

    status, place = run_simulated(scenario())
    assert place == {0: QueuePlace.QUEUED}
    assert 4 * 45 <= status.tokens_wasted == status.tokens_generated < 4 * 100


def test_a_commit_after_the_lease_expired_is_refused_and_counted(service: Make, draw: Make) -> None:
    class SlowScorer(FakeScorer):
        async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
            await scoring_goes_on.wait()
            return await super().combine(prompt, completions)

    scoring_goes_on = asyncio.Event()

    async def scenario() -> Any:
        s = service(simulation=STEADY, scorer=SlowScorer())
        await s.push(draw(0))
        async with s.running(s.actor()):
            await asyncio.sleep(9.0)
            await s.queue.set_control("a0", "pause")
            await asyncio.sleep(1.5)
            await s.queue.release_dead_actor("a0")
            scoring_goes_on.set()
            await asyncio.sleep(1.5)
            status = (await s.queue.statuses())["a0"]
            counts = await s.queue.counts("train")
        return status, counts

    status, counts = run_simulated(scenario())
    assert (status.commits_late, counts.late, counts.results) == (1, 1, 0)
    assert status.tokens_wasted == status.tokens_generated == 400


@pytest.mark.parametrize("leaves", [False, True])
def test_a_commit_under_way_is_left_to_the_queue(service: Make, draw: Make, leaves: bool) -> None:
    class SlowReply(MemoryQueue):
        async def commit(self, lease: Lease, result: Result) -> CommitOutcome:
            outcome = await super().commit(lease, result)
            await asyncio.sleep(6.0)
            return outcome

    async def scenario() -> Any:
        s = service(simulation=STEADY, queue_kind=SlowReply)
        await s.push(draw(0))
        actor = s.actor()
        async with s.running(actor):
            await s.results(1)
            if leaves:
                await actor.stop()
            else:
                await asyncio.sleep(8.0)
            counts = await s.queue.counts("train")
            status = actor.status()
        return counts, status

    counts, status = run_simulated(scenario())
    assert (counts.queued, counts.leased, counts.results) == (0, 0, 1)
    assert (status.tokens_wasted, status.completions) == (0, 4)


def test_an_unscorable_group_fails_with_its_cause_and_the_actor_goes_on(service: Make, draw: Make) -> None:
    class Picky(FakeScorer):
        async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
            if prompt.draw_id == 1:
                raise Unscorable("judge_down", "no answer in 3 tries")
            return await super().combine(prompt, completions)

    async def scenario() -> Any:
        s = service(simulation=STEADY, scorer=Picky())
        await s.push(*(draw(i) for i in range(3)))
        async with s.running(s.actor()):
            results = await s.results(3)
            await asyncio.sleep(1.0)
            status = (await s.queue.statuses())["a0"]
        return {result.prompt.draw_id: result for result in results}, status

    results, status = run_simulated(scenario())
    assert isinstance(results[0], Group)
    assert isinstance(results[2], Group)
    failure = results[1]
    assert isinstance(failure, Failure)
    assert (failure.cause, failure.detail, failure.num_tokens) == (
        "unscorable",
        "judge_down: no answer in 3 tries",
        400,
    )
    assert (status.tokens_wasted, status.completions) == (0, 12)


def test_a_start_that_waits_for_weights_says_why_they_do_not_come(service: Make) -> None:
    async def scenario() -> None:
        s = service(settings=config.Actors(start_deadline_s=60))
        s.shelf.corrupt.add(Version(1, 0))
        async with asyncio.timeout(100):
            await s.actor().run()

    with pytest.raises(DeadlinePassed, match=r"a0 to start .*could not be fetched: chunk 3 of weights 1\.0"):
        run_simulated(scenario())


def test_an_error_of_the_engine_ends_the_actor_and_no_draw(service: Make, draw: Make) -> None:
    class Broken(FakeEngine):
        async def generate(self, *args: Any, **named: Any) -> Completion:
            raise ValueError("not a version: x")

    async def scenario() -> None:
        s = service()
        await s.push(draw(0))
        async with asyncio.timeout(100):
            await s.actor(engine=Broken(STEADY, max_running=16, max_model_len=500)).run()

    with pytest.raises(ValueError, match="not a version"):
        run_simulated(scenario())


def test_a_prompt_beyond_the_context_fails_as_over_long(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service()
        await s.push(draw(0, tokens=500), draw(1))
        async with s.running(s.actor()):
            return {result.prompt.draw_id: result for result in await s.results(2)}

    results = run_simulated(scenario())
    assert isinstance(results[0], Failure)
    assert (results[0].cause, results[0].detail) == ("over_long", "prompt of 500 tokens, the context has 500")
    assert isinstance(results[1], Group)


def test_drain_finishes_what_runs_and_takes_no_more(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(*(draw(i) for i in range(12)))
        actor = s.actor()
        async with s.running(actor):
            await asyncio.sleep(3.0)
            await actor.drain()
        return await s.queue.counts("train"), (await s.queue.statuses())["a0"]

    counts, status = run_simulated(scenario())
    assert (counts.queued, counts.leased, counts.results) == (7, 0, 5)
    assert (status.tokens_wasted, status.completions, status.state) == (0, 20, "drain")


def test_drain_by_order_of_the_queue_ends_the_actor(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(*(draw(i) for i in range(12)))
        await s.queue.set_control("a0", "drain")
        async with asyncio.timeout(60):
            await s.actor().run()
        return await s.queue.counts("train")

    counts = run_simulated(scenario())
    assert (counts.leased, counts.queued + counts.results) == (0, 12)


def test_stop_gives_the_leases_back_with_the_same_attempt(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.push(*(draw(i) for i in range(6)))
        actor = s.actor()
        async with s.running(actor):
            await asyncio.sleep(3.0)
            started = s.clock.now()
            await actor.stop()
            took = s.clock.now() - started
        counts = await s.queue.counts("train")
        leases = await s.queue.lease("other", 10, "train", 0.0)
        return counts, leases, took, (await s.queue.statuses())["a0"]

    counts, leases, took, status = run_simulated(scenario())
    assert (counts.queued, counts.leased, counts.results) == (6, 0, 0)
    assert {lease.prompt.attempt for lease in leases} == {1}
    assert took < 1.0
    assert status.tokens_wasted == status.tokens_generated > 0


def test_pause_holds_admission_until_run(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY)
        await s.queue.set_control("a0", "pause")
        async with s.running(s.actor()):
            await asyncio.sleep(2.0)
            await s.push(draw(0))
            await asyncio.sleep(5.0)
            paused = await s.queue.counts("train")
            await s.queue.set_control("a0", "run")
            await s.results(1)
        return paused

    assert run_simulated(scenario()).queued == 1


def test_a_lease_that_is_given_once_more_is_worked_on_once(service: Make, draw: Make) -> None:
    class Repeating(MemoryQueue):
        """Has lost each lease by the time it is asked again, as after a fail-over."""

        given: Sequence[Lease] = ()

        async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
            again, self.given = self.given, await super().lease(owner, limit, lane, wait_s)
            return [*again, *self.given]

    async def scenario() -> Any:
        s = service(simulation=STEADY, queue_kind=Repeating)
        await s.push(draw(0), draw(1))
        async with s.running(s.actor()):
            groups = await s.results(2)
            await asyncio.sleep(20)
            return groups, await s.queue.counts("train"), s.engines["a0"].tokens_generated

    groups, counts, tokens = run_simulated(scenario())
    assert sorted(group.prompt.draw_id for group in groups) == [0, 1]
    assert (counts.late, counts.duplicates) == (0, 0)
    assert tokens == sum(len(c.token_ids) for group in groups for c in group.completions)


def test_an_engine_without_progress_ends_the_actor_with_its_name(service: Make, draw: Make) -> None:
    class Stuck(FakeEngine):
        async def generate(
            self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0
        ) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError("nothing sets the event")

    async def scenario() -> None:
        s = service(settings=config.Actors(stall_deadline_s=20))
        await s.push(draw(0))
        await s.actor(engine=Stuck(STEADY, max_running=4, max_model_len=500)).run()

    with pytest.raises(DeadlinePassed, match="waited 20 s for a token from the engine of a0, which has 4 sequences"):
        run_simulated(scenario())


def test_an_engine_error_ends_the_actor_and_rewards_nothing(service: Make, draw: Make) -> None:
    class Broken(FakeEngine):
        async def generate(
            self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0
        ) -> Completion:
            raise RuntimeError("device lost")

    async def scenario() -> Any:
        s = service()
        await s.queue.claim(1)
        await s.push(draw(0))
        with pytest.raises(RuntimeError, match="device lost"):
            await s.actor(engine=Broken(STEADY, max_running=4, max_model_len=500)).run()
        assert len(asyncio.all_tasks()) == 1
        held = await s.queue.inventory("train")
        await s.queue.release_dead_actor("a0")
        (lease,) = await s.queue.lease("other", 1, "train", 0.0)
        return held, lease.prompt.attempt

    assert run_simulated(scenario()) == ({0: QueuePlace.LEASED}, 2)


def test_cancelling_an_actor_leaves_nothing_behind(service: Make, draw: Make) -> None:
    stopped = []

    class Engine(FakeEngine):
        async def stop(self) -> None:
            stopped.append("engine")

    class Scorer(FakeScorer):
        async def stop(self) -> None:
            stopped.append("scorer")

    async def scenario() -> Any:
        s = service(simulation=STEADY, scorer=Scorer())
        await s.push(*(draw(i) for i in range(6)))
        running = asyncio.create_task(s.actor(engine=Engine(STEADY, max_running=16, max_model_len=500)).run())
        await asyncio.sleep(3.0)
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled(), len(asyncio.all_tasks()), s.engines["a0"].load().running

    assert run_simulated(scenario()) == (True, 1, 0)
    assert stopped == ["scorer", "engine"]


def test_leases_of_long_answers_are_kept(service: Make, draw: Make) -> None:
    slow = Simulation(tokens_per_s=2, mean_tokens=100, tail=0)

    async def scenario() -> Any:
        s = service(simulation=slow)
        await s.push(draw(0))
        async with s.running(s.actor()):
            while not (await s.queue.counts("train")).results:
                assert await s.queue.expire() == 0
                await asyncio.sleep(1.0)
            return s.clock.now()

    assert run_simulated(scenario()) > 50


def test_slots_stay_full_while_long_answers_hold_their_groups_open(service: Make, draw: Make) -> None:
    long_tailed = Simulation(tokens_per_s=50, batch_slowdown=0, mean_tokens=60, tail=1.5)

    async def scenario() -> Any:
        s = service(simulation=long_tailed)
        await s.push(*(draw(i, group_size=8) for i in range(60)))
        running = []
        async with s.running(s.actor()):
            await asyncio.sleep(1.0)
            while (await s.queue.counts("train")).queued:
                running.append(s.engines["a0"].load().running)
                await asyncio.sleep(0.1)
        return running

    running = run_simulated(scenario())
    assert len(running) > 100
    assert set(running) == {16}


def test_a_static_batch_begins_when_the_one_before_has_ended(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(
            settings=config.Actors(max_running=8, batching="static"),
            simulation=Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0.7),
        )
        await s.push(*(draw(i) for i in range(6)))
        async with s.running(s.actor()):
            return await s.results(6)

    groups = run_simulated(scenario())
    begun = sorted(group.started_at for group in groups)
    ended = sorted(group.finished_at for group in groups)
    assert begun[0] == begun[1] < begun[2] == begun[3] < begun[4] == begun[5]
    assert (begun[2], begun[4]) == pytest.approx((ended[1], ended[3]), abs=0.01)


def test_a_draining_actor_answers_each_prompt_with_one_version_the_newest(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(
            settings=config.Actors(max_running=8, weight_update="drain"),
            simulation=Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0),
        )
        await s.push(*(draw(i) for i in range(6)))
        async with s.running(s.actor()):
            for number in (1, 2, 3):  # two of them while the engine drains
                await asyncio.sleep(3.0)
                s.shelf.publish(Version(1, number))
            return await s.results(6), s.engines["a0"].version, s.shelf.fetched

    groups, version, fetched = run_simulated(scenario())
    spans = [completion.spans for group in groups for completion in group.completions]
    assert {len(each) for each in spans} == {1}
    assert [each[0].version.number for each in spans] == [0] * 8 + [3] * 16
    assert version == Version(1, 3) and Version(1, 2) not in fetched


def test_a_slow_verifier_bounds_the_leases(service: Make, draw: Make) -> None:
    class Slow(FakeScorer):
        async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
            await asyncio.sleep(60.0)
            return await super().verify(prompt, completion)

    async def scenario() -> Any:
        s = service(simulation=STEADY, scorer=Slow())
        await s.push(*(draw(i) for i in range(40)))
        leased = []
        async with s.running(s.actor()):
            while (await s.queue.counts("train")).queued:
                leased.append((await s.queue.counts("train")).leased)
                await asyncio.sleep(1.0)
        return leased

    # 16 slots and 4 waiting, generated and once more unverified: 40 sequences, ten groups.
    assert max(run_simulated(scenario())) == 10


def test_older_draws_begin_first_and_evaluation_keeps_its_place(
    service: Make, draw: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config.Actors, "max_waiting", property(lambda actors: 16))

    async def scenario() -> list[tuple[str, int]]:
        s = service(
            simulation=STEADY,
            settings=config.Actors(max_running=4),
            evaluation=config.Evaluation(samples=4),
            evaluation_share=1.0,
            evaluation_lanes=("held",),
        )
        await s.push(draw(7))
        async with s.running(s.actor()):
            await asyncio.sleep(2.0)
            await s.push(draw(8))
            await asyncio.sleep(2.0)
            await s.push(draw(900, lane="held"))
            await asyncio.sleep(2.0)
            await s.push(draw(9), draw(3))
            groups = [*await s.results(4), *await s.results(1, lane="held")]
        groups.sort(key=lambda group: group.finished_at)
        return [(group.prompt.lane, group.prompt.draw_id) for group in groups]

    # 3 is an old draw whose first actor died: it begins before 8 and the evaluation, which came before it.
    assert run_simulated(scenario()) == [("train", 7), ("train", 3), ("train", 8), ("held", 900), ("train", 9)]


def test_the_place_of_a_prompt_is_its_draw(draw: Make) -> None:
    def lease(prompt: Prompt) -> LeasedGroup:
        return LeasedGroup(Lease(prompt=prompt, lease_id="1", owner="a0", deadline=0.0))

    held = [lease(draw(5)), lease(draw(12)), lease(draw(40, lane="held"))]
    assert place_in_engine(draw(7), held) == 7
    assert place_in_engine(draw(3_000_000, lane="held"), held) == 12
    assert place_in_engine(draw(3_000_000, lane="held"), []) == 0


def test_evaluation_takes_its_share_while_training_waits_and_all_when_it_does_not(service: Make, draw: Make) -> None:
    evaluation = config.Evaluation(samples=1, max_tokens=150)

    async def scenario() -> Any:
        s = service(simulation=STEADY, evaluation=evaluation, evaluation_lanes=("held_out",))
        await s.push(*(draw(i) for i in range(10)), *(draw(i, lane="held_out", group_size=1) for i in range(60)))
        shares = []
        async with s.running(s.actor()):
            while (await s.queue.counts("train")).queued:
                await asyncio.sleep(1.0)
                shares.append((await s.queue.counts("held_out")).leased)
            together = await s.queue.counts("held_out")
            evaluated = await s.results(60, lane="held_out")
            await s.results(10)
        return shares, together, evaluated, s.clock.now()

    shares, together, evaluated, seconds = run_simulated(scenario())
    assert max(shares[:-1]) == 4
    assert together.results > 0
    assert {len(group.completions) for group in evaluated} == {1}
    # 60 answers at 4 a wave would take 150 s; the slots that training left took the rest.
    assert seconds < 80


def test_over_age_drop_cancels_answers_that_outlive_the_span(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, max_span=1)
        await s.push(draw(0))
        async with s.running(s.actor()):
            for number in (1, 2):
                await asyncio.sleep(3.0)
                s.shelf.publish(Version(1, number))
            (result,) = await s.results(1)
            await asyncio.sleep(1.0)
            status = (await s.queue.statuses())["a0"]
        return result, status

    result, status = run_simulated(scenario())
    assert isinstance(result, Failure)
    assert (result.cause, result.detail) == ("stale", "unfinished over 1 versions after 1.0")
    assert status.tokens_wasted == status.tokens_generated > 200


def test_totals_add_up_over_actors(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service()
        await s.push(*(draw(i) for i in range(40)))
        actors = [s.actor("a0"), s.actor("a1")]
        async with s.running(*actors):
            groups = await s.results(40)
            await asyncio.sleep(1.0)
            statuses = await s.queue.statuses()
        return groups, statuses

    groups, statuses = run_simulated(scenario())
    assert sum(status.completions for status in statuses.values()) == 160
    assert sum(status.tokens_generated for status in statuses.values()) == sum(g.num_tokens for g in groups)
    assert {status.tokens_wasted for status in statuses.values()} == {0}
    assert min(status.completions for status in statuses.values()) > 0


def test_a_hundred_actors_serve_two_thousand_prompts_while_versions_come(service: Make, draw: Make) -> None:
    async def publish(s: Any) -> None:
        for number in range(1, 1000):
            await asyncio.sleep(5.0)
            s.shelf.publish(Version(1, number))

    async def scenario() -> Any:
        s = service(settings=config.Actors(max_running=16))
        await s.push(*(draw(i) for i in range(2000)))
        async with s.running(*(s.actor(f"a{i}") for i in range(100))):
            publisher = asyncio.create_task(publish(s))
            groups = await s.results(2000)
            publisher.cancel()
        return groups, await s.queue.counts("train")

    groups, counts = run_simulated(scenario())
    assert sorted(group.prompt.draw_id for group in groups) == list(range(2000))
    assert (counts.late, counts.duplicates) == (0, 0)
    assert len({group.actor for group in groups}) == 100
    completions = [c for group in groups for c in group.completions]
    assert any(len(c.spans) > 1 for c in completions)
    assert all(
        [span.start for span in c.spans[1:]] == [span.end for span in c.spans[:-1]]
        and c.spans[-1].end == len(c.token_ids) == len(c.logprobs)
        for c in completions
    )
    assert 0 < np.mean([c.reward for c in completions]) < 1
