"""The contract of every queue. Runs against each adapter, with a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl.codec import decode, encode
from olmorl.errors import QueueFull, Superseded
from olmorl.messages import ActorStatus, Failure, Group, Lease, Prompt, Version
from olmorl.ports import CommitOutcome, Counts, Queue, QueuePlace, Taken
from olmorl.queues.prompts.redis_queue import RedisQueue
from tests.waiting import seconds

if TYPE_CHECKING:
    from tests.contract.conftest import QueueRig

MakePrompt = Callable[..., Prompt]
MakeGroup = Callable[[Prompt], Group]
LEASE_S, TOTAL_DEADLINE_S = 60.0, 100.0


async def lease(queue: Queue, limit: int = 1, owner: str = "actor-0", lane: str = "train") -> list[Lease]:
    return await queue.lease(owner, limit, lane, wait_s=0)


async def take(queue: Queue, limit: int = 100, lane: str = "train") -> list[Taken]:
    return await queue.take(limit, lane, wait_s=0)


async def live(queue: Queue) -> tuple[int, int, int]:
    return (await queue.counts("train"))[:3]


async def test_a_draw_goes_from_prompt_to_result(queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup) -> None:
    prompt = make_prompt(7)
    await queue.push([prompt])
    assert await live(queue) == (1, 0, 0)

    [lent] = await lease(queue)
    assert (lent.owner, lent.prompt.row, lent.prompt.columns) == ("actor-0", "problems.jsonl:7", {"level": 3})
    np.testing.assert_array_equal(lent.prompt.token_ids, prompt.token_ids)
    assert await live(queue) == (0, 1, 0)

    group = make_group(lent.prompt)
    assert await queue.commit(lent, group) is CommitOutcome.STORED
    assert await live(queue) == (0, 0, 1)

    [taken] = await take(queue)
    assert taken.draw_id == 7
    assert isinstance(taken.result, Group)
    np.testing.assert_array_equal(taken.result.completions[0].logprobs, group.completions[0].logprobs)
    assert await live(queue) == (0, 0, 1), "taken is not trimmed"

    await queue.trim([taken])
    await queue.trim([taken])
    assert await queue.counts("train") == Counts(0, 0, 0, 0, 0)


async def test_prompts_are_leased_in_order_and_once(queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(n) for n in (3, 1, 2)])
    first, second = await lease(queue, 2), await lease(queue, 2)
    assert [lent.prompt.draw_id for lent in first + second] == [3, 1, 2]
    assert len({lent.lease_id for lent in first + second}) == 3


async def test_a_draw_that_is_queued_leased_or_done_is_not_queued_twice(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1), make_prompt(1)])
    await queue.push([make_prompt(1)])
    assert await live(queue) == (1, 0, 0)
    [lent] = await lease(queue)
    await queue.push([make_prompt(1)])
    assert await live(queue) == (0, 1, 0)
    await queue.commit(lent, make_group(lent.prompt))
    await queue.push([make_prompt(1)])
    assert await live(queue) == (0, 0, 1)
    await queue.trim(await take(queue))
    await queue.push([make_prompt(1)])
    assert await live(queue) == (0, 0, 0)


async def test_push_is_all_or_none_and_results_count_against_the_bound(
    rig: QueueRig, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    queue = await rig.connect(bound=3)
    await queue.claim(1)
    await queue.push([make_prompt(1), make_prompt(2)])
    with pytest.raises(QueueFull, match="bound of 3"):
        await queue.push([make_prompt(3), make_prompt(4)])
    assert await live(queue) == (2, 0, 0)
    await queue.push([make_prompt(1), make_prompt(2), make_prompt(3)])

    leases = await lease(queue, 3)
    assert [await queue.commit(lent, make_group(lent.prompt)) for lent in leases] == [CommitOutcome.STORED] * 3
    with pytest.raises(QueueFull):
        await queue.push([make_prompt(4)])
    await queue.push([make_prompt(5, attempt=2), make_prompt(6, attempt=3)])
    assert await live(queue) == (2, 0, 3), "the bound does not stop the requeue of lost draws"
    await queue.withdraw([5, 6], "train")
    await queue.trim((await take(queue))[:1])
    await queue.push([make_prompt(4)])


async def test_an_expired_lease_goes_to_another_actor_as_the_next_attempt(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    [lent] = await lease(queue)
    assert lent.deadline == rig.clock.wall() + LEASE_S
    rig.clock.time += LEASE_S - 1
    assert await queue.expire() == 0
    rig.clock.time += 1
    assert await queue.expire() == 1
    assert await queue.expire() == 0
    [again] = await lease(queue, owner="actor-1")
    assert (again.prompt.draw_id, again.prompt.attempt) == (1, 2), "started again before anything fresh"
    assert again.lease_id != lent.lease_id


async def test_extended_leases_hold_and_lost_ones_are_named(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    kept, lost = await lease(queue, 2)
    rig.clock.time += LEASE_S - 1
    assert await queue.extend([kept]) == set()
    rig.clock.time += 2
    assert await queue.extend([kept, lost]) == {lost.lease_id}
    assert await queue.expire() == 1
    assert await queue.extend([kept, lost]) == {lost.lease_id}
    assert await queue.inventory("train") == {1: QueuePlace.LEASED, 2: QueuePlace.QUEUED}
    assert await queue.queued("train") == [2]


async def test_given_back_prompts_keep_their_attempt(queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    [lent] = await lease(queue)
    assert await queue.queued("train") == [2]
    await queue.give_back([lent])
    await queue.give_back([lent])
    assert await queue.queued("train") == [1, 2]
    assert await live(queue) == (2, 0, 0)
    [again] = await lease(queue)
    assert (again.prompt.draw_id, again.prompt.attempt) == (1, 1)


async def test_a_released_owner_loses_its_leases_at_once(queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(n) for n in range(5)])
    dead, alive = await lease(queue, 3, "dead"), await lease(queue, 2, "alive")
    assert await queue.release_dead_actor("dead") == 3
    assert await queue.release_dead_actor("nobody") == 0
    assert await queue.extend([*dead, *alive]) == {lent.lease_id for lent in dead}
    again = await lease(queue, 5, "other")
    assert [(lent.prompt.draw_id, lent.prompt.attempt) for lent in again] == [(0, 2), (1, 2), (2, 2)]
    assert await queue.release_dead_actor("other") == 3


async def test_after_the_last_attempt_the_draw_fails(rig: QueueRig, queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(1)])
    for attempt in (1, 2, 3):
        [lent] = await lease(queue)
        assert lent.prompt.attempt == attempt
        rig.clock.time += LEASE_S
        assert await queue.expire() == 1
    assert await lease(queue) == []
    [taken] = await take(queue)
    assert isinstance(taken.result, Failure)
    assert (taken.draw_id, taken.result.cause, taken.result.prompt.attempt) == (1, "attempts", 3)
    assert taken.result.prompt.row == "problems.jsonl:1"
    [letter] = await queue.dead_letters("train")
    assert (letter.draw_id, letter.reason) == (1, "none of its 3 attempts ended with a commit")
    assert decode(letter.payload, Prompt).row == "problems.jsonl:1"


async def test_the_total_deadline_counts_from_the_first_attempt_that_is_lost(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt
) -> None:
    await queue.push([make_prompt(1)])
    for _ in range(2):
        rig.clock.time += 10 * TOTAL_DEADLINE_S
        assert [other.prompt.draw_id for other in await lease(queue)] == [1], "the run was stopped over the weekend"
        assert await take(queue) == []
        rig.clock.time += LEASE_S
        assert await queue.expire() == 1
    assert await live(queue) == (0, 0, 1)
    assert [item.result.cause for item in await take(queue) if isinstance(item.result, Failure)] == ["total_deadline"]
    [letter] = await queue.dead_letters("train")
    assert (letter.draw_id, letter.reason) == (1, "lost once more after the total deadline")


async def test_who_was_told_to_leave_is_given_nothing_more(queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    assert len(await queue.lease("actor-1", 1, "train", 0)) == 1
    await queue.set_control("actor-1", "drain")
    assert await queue.release_dead_actor("actor-1") == 1
    assert await queue.lease("actor-1", 2, "train", 0) == [], "it asked before it was cut off"
    assert len(await queue.lease("actor-1.2", 2, "train", 0)) == 2


async def test_late_and_duplicate_commits_are_refused_and_counted(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1)])
    [first] = await lease(queue)
    rig.clock.time += LEASE_S
    assert await queue.commit(first, make_group(first.prompt)) is CommitOutcome.LATE, (
        "expired, though nobody has it yet"
    )
    await queue.expire()
    assert await queue.commit(first, make_group(first.prompt)) is CommitOutcome.LATE
    [second] = await lease(queue, owner="actor-1")
    assert await queue.commit(second, make_group(second.prompt)) is CommitOutcome.STORED
    assert await queue.commit(first, make_group(first.prompt)) is CommitOutcome.DUPLICATE
    assert await queue.commit(second, make_group(second.prompt)) is CommitOutcome.DUPLICATE
    await queue.trim(await take(queue))
    assert await queue.commit(first, make_group(first.prompt)) is CommitOutcome.DUPLICATE
    assert await queue.counts("train") == Counts(0, 0, 0, late=2, duplicates=3)


async def test_a_commit_of_another_draw_is_a_mistake(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    one, two = await lease(queue, 2)
    with pytest.raises(AssertionError):
        await queue.commit(one, make_group(two.prompt))


async def test_results_are_taken_once_and_again_after_a_new_claim(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(n) for n in range(4)])
    for lent in await lease(queue, 4):
        await queue.commit(lent, make_group(lent.prompt))
    first = await take(queue, 3)
    assert [item.draw_id for item in first] == [0, 1, 2]
    assert [item.draw_id for item in await take(queue)] == [3]
    assert await take(queue) == []
    await queue.trim(first[:2])

    successor = await rig.connect()
    await successor.claim(2)
    assert [item.draw_id for item in await take(successor)] == [2, 3]


async def test_what_was_under_way_at_a_claim_is_taken_again(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1)])
    [lent] = await lease(queue)
    waiting = asyncio.create_task(queue.take(10, "train", 5))
    await asyncio.sleep(0.1)
    await queue.claim(1)
    await queue.commit(lent, make_group(lent.prompt))
    assert [item.draw_id for item in await waiting] == [1]
    assert [item.draw_id for item in await take(queue)] == [1]


async def test_a_newer_claim_supersedes(rig: QueueRig, queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(1)])
    [lent] = await lease(queue)
    successor = await rig.connect()
    for stale in (0, 1):
        with pytest.raises(Superseded):
            await successor.claim(stale)
    await successor.claim(2)

    for refused in (
        queue.push([make_prompt(2)]),
        queue.expire(),
        queue.release_dead_actor("actor-0"),
        queue.take(1, "train", 0),
        queue.trim([Taken("1-0", 1, Failure(prompt=make_prompt(1), cause="attempts"))]),
        queue.flush("train"),
        queue.withdraw([1], "train"),
        queue.forget_done([1], "train"),
        queue.drop_dead_letters([1], "train"),
        queue.inventory("train"),
        queue.queued("train"),
        queue.claim(1),
    ):
        with pytest.raises(Superseded, match="by incarnation 2"):
            await refused
    assert await queue.extend([lent]) == set(), "actors go on"
    assert await successor.inventory("train") == {1: QueuePlace.LEASED}


async def test_lanes_are_apart(queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup) -> None:
    await queue.push([make_prompt(1)])
    await queue.push([make_prompt(1, lane="held-out"), make_prompt(2, lane="held-out")])
    assert await lease(queue, lane="unheard-of") == []
    [lent] = await lease(queue, lane="held-out")
    assert lent.prompt.lane == "held-out"
    await queue.commit(lent, make_group(lent.prompt))
    assert await queue.counts("train") == Counts(1, 0, 0, 0, 0)
    assert await queue.counts("held-out") == Counts(1, 0, 1, 0, 0)
    assert await take(queue) == []
    assert [item.draw_id for item in await take(queue, lane="held-out")] == [1]
    assert await queue.extend([*await lease(queue), *await lease(queue, lane="held-out")]) == set()
    assert await queue.release_dead_actor("actor-0") == 2


async def test_undecodable_messages_become_dead_letters_and_failures(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    await rig.damage_prompt(1)
    [lent] = await lease(queue, 2)
    assert lent.prompt.draw_id == 2
    await queue.commit(lent, make_group(lent.prompt))
    await rig.damage_result(2)

    taken = {item.draw_id: item.result for item in await take(queue)}
    assert {draw: result.cause for draw, result in taken.items() if isinstance(result, Failure)} == {
        1: "poison",
        2: "poison",
    }
    assert taken[2].prompt.row == "problems.jsonl:2"
    letters = await queue.dead_letters("train")
    assert [(letter.draw_id, letter.payload) for letter in letters] == [(1, b"damaged"), (2, b"damaged")]
    assert all("not an OlmoRL message" in letter.reason for letter in letters)

    await queue.drop_dead_letters([1, 7], "train")
    assert [letter.draw_id for letter in await queue.dead_letters("train")] == [2]


@pytest.mark.parametrize("other", [{"draw_id": 3}, {"lane": "held-out"}])
async def test_a_message_in_the_place_of_another_draw_is_a_dead_letter(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup, other: dict[str, Any]
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    await rig.damage_prompt(1, encode(replace(make_prompt(1), **other)))
    [lent] = await lease(queue, 2)
    assert lent.prompt.draw_id == 2
    await queue.commit(lent, make_group(lent.prompt))
    await rig.damage_result(2, encode(make_group(replace(lent.prompt, **other))))

    taken = await take(queue)
    causes = {item.draw_id: item.result.cause for item in taken if isinstance(item.result, Failure)}
    assert causes == {1: "poison", 2: "poison"}
    assert [(item.result.prompt.draw_id, item.result.prompt.lane) for item in taken] == [(1, "train"), (2, "train")]
    letters = await queue.dead_letters("train")
    assert [letter.draw_id for letter in letters] == [1, 2]
    assert all("in the place of draw" in letter.reason for letter in letters)
    await queue.trim(taken)
    assert await live(queue) == (0, 0, 0)


async def test_the_inventory_names_the_place_of_each_draw(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(n) for n in range(4)])
    leases = await lease(queue, 3)
    await queue.commit(leases[0], make_group(leases[0].prompt))
    await queue.commit(leases[1], make_group(leases[1].prompt))
    await queue.trim(await take(queue, 1))
    assert await queue.inventory("train") == {1: QueuePlace.RESULTS, 2: QueuePlace.LEASED, 3: QueuePlace.QUEUED}
    assert await queue.inventory("unheard-of") == {}
    assert await queue.queued("train") == [3]
    assert await queue.queued("unheard-of") == []


async def test_what_is_queued_or_leased_is_withdrawn_and_a_result_is_not(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(n) for n in range(5)])
    await queue.push([make_prompt(5, attempt=2)])
    again, leased, answered = await lease(queue, 3)
    assert [lent.prompt.draw_id for lent in (again, leased, answered)] == [5, 0, 1]
    await queue.give_back([again])
    await queue.commit(answered, make_group(answered.prompt))
    await queue.withdraw([0, 1, 2, 5, 77], "train")
    assert await queue.inventory("train") == {1: QueuePlace.RESULTS, 3: QueuePlace.QUEUED, 4: QueuePlace.QUEUED}
    assert await queue.extend([leased]) == {leased.lease_id}
    assert await queue.commit(leased, make_group(leased.prompt)) is CommitOutcome.LATE
    assert [lent.prompt.draw_id for lent in await lease(queue, 5)] == [3, 4]
    await queue.push([make_prompt(0)])
    assert await live(queue) == (1, 2, 1)
    await queue.withdraw([0], "unheard-of")
    assert await live(queue) == (1, 2, 1)


async def test_a_done_mark_without_its_group_can_be_forgotten(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1), make_prompt(2)])
    for lent in await lease(queue, 2):
        await queue.commit(lent, make_group(lent.prompt))
    await queue.trim(await take(queue, 1))
    await queue.forget_done([1, 2], "train")
    await queue.push([make_prompt(1, attempt=2), make_prompt(2, attempt=2)])
    assert await queue.inventory("train") == {1: QueuePlace.QUEUED, 2: QueuePlace.RESULTS}
    [lent] = await lease(queue)
    assert lent.prompt.attempt == 2


async def test_a_flushed_lane_draws_again(queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup) -> None:
    await queue.push([make_prompt(n) for n in range(3)])
    one, two = await lease(queue, 2)
    await queue.commit(one, make_group(one.prompt))
    await queue.flush("train")
    assert await live(queue) == (0, 0, 0)
    assert await queue.commit(two, make_group(two.prompt)) is CommitOutcome.LATE
    await queue.push([make_prompt(n) for n in range(3)])
    leases = await lease(queue, 3)
    assert [lent.prompt.draw_id for lent in leases] == [0, 1, 2]
    assert await queue.commit(two, make_group(two.prompt)) is CommitOutcome.LATE, "a lease of before the flush"
    assert await queue.commit(leases[1], make_group(leases[1].prompt)) is CommitOutcome.STORED
    assert [item.draw_id for item in await take(queue)] == [1]


async def delay(waiting: Awaitable[Sequence[object]], cause: Callable[[], Awaitable[object]]) -> float:
    """Seconds between the cause and the end of a wait that was under way."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0.1)
    assert not task.done()
    start = seconds()
    await cause()
    assert len(await task) == 1
    return seconds() - start


async def test_waiting_ends_as_soon_as_there_is_something(
    rig: QueueRig, queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    actor = await rig.connect()
    pushed, given_back, committed = [], [], []
    for draw_id in range(3):
        # The shortest of three: a busy machine delays some, a wait that is not woken delays all.
        pushed.append(await delay(actor.lease("a", 1, "train", 20), partial(queue.push, [make_prompt(2 * draw_id)])))
        await queue.push([make_prompt(2 * draw_id + 1)])
        held = await lease(queue)
        given_back.append(await delay(actor.lease("a", 1, "train", 20), partial(queue.give_back, held)))
        await queue.release_dead_actor("a")
        [last] = await lease(queue)
        commit = partial(queue.commit, last, make_group(last.prompt))
        committed.append(await delay(queue.take(5, "train", 20), commit))
        await queue.flush("train")
    assert min(pushed) < 0.2
    assert min(given_back) < 0.2
    assert min(committed) < 0.2


async def test_waiting_for_nothing_ends_at_its_time(queue: Queue) -> None:
    start, own_start = time.monotonic(), seconds()
    assert await queue.lease("actor-0", 1, "train", 0.2) == []
    assert await queue.take(1, "train", 0.2) == []
    assert time.monotonic() - start > 0.35 and seconds() - own_start < 2


async def test_heartbeats_and_orders(queue: Queue) -> None:
    assert await queue.statuses() == {}
    for at in (1.0, 2.0):
        await queue.heartbeat(ActorStatus(name="actor-0", at=at, version=Version(1, 4), running=3))
    status = (await queue.statuses())["actor-0"]
    assert (status.at, status.version, status.running) == (2.0, Version(1, 4), 3)

    async def order(name: str) -> str:
        return await queue.heartbeat(ActorStatus(name=name, at=3.0))

    assert await order("actor-0") == "run"
    await queue.set_control("*", "pause")
    await queue.set_control("actor-1", "drain")
    assert [await order(f"actor-{n}") for n in (0, 1)] == ["pause", "drain"]
    await queue.set_control("*", "run")
    assert await order("actor-1") == "run"
    with pytest.raises(ValueError, match="use one of run, pause, drain"):
        await queue.set_control("*", "dance")


async def test_an_unreadable_heartbeat_is_removed(rig: QueueRig, queue: Queue) -> None:
    await queue.heartbeat(ActorStatus(name="actor-0", at=1.0))
    await rig.damage_heartbeat("actor-9")
    assert list(await queue.statuses()) == ["actor-0"]
    assert list(await queue.statuses()) == ["actor-0"]


async def test_an_actor_that_is_forgotten_is_not_heard_of_any_more(queue: Queue) -> None:
    for name in ("dead", "alive"):
        await queue.heartbeat(ActorStatus(name=name, at=1.0))
    await queue.release_dead_actor("dead")
    assert list(await queue.statuses()) == ["dead", "alive"]
    for _ in range(2):
        await queue.forget_actor("dead")
        assert list(await queue.statuses()) == ["alive"]


async def test_what_an_actor_has_stored_is_known_without_another_heartbeat(
    queue: Queue, make_prompt: MakePrompt, make_group: MakeGroup
) -> None:
    await queue.push([make_prompt(1), make_prompt(2), make_prompt(1, lane="held-out")])
    for name in ("actor-0", "actor-1"):
        await queue.heartbeat(ActorStatus(name=name, at=1.0))

    async def stored() -> list[int]:
        return [status.tokens_stored for status in (await queue.statuses()).values()]

    assert await stored() == [0, 0]
    leases = [*await lease(queue, 2), *await lease(queue, lane="held-out")]
    group, failure = make_group(leases[0].prompt), Failure(prompt=leases[1].prompt, cause="over_long", num_tokens=7)
    for lent, result in zip(leases, (group, failure, make_group(leases[2].prompt)), strict=True):
        for _ in range(2):
            await queue.commit(lent, result)
    everything = 2 * group.num_tokens + 7
    assert await stored() == [everything, 0], "stored once, in all lanes"
    await queue.heartbeat(ActorStatus(name="actor-0", at=2.0, tokens_stored=everything + 5))
    assert await stored() == [everything + 5, 0], "a queue that lost its last writes"
    await queue.forget_actor("actor-0")
    await queue.heartbeat(ActorStatus(name="actor-0", at=3.0))
    assert (await queue.statuses())["actor-0"].tokens_stored == 0


async def test_an_owner_makes_sure_of_its_claim(queue: Queue, make_prompt: MakePrompt) -> None:
    await queue.push([make_prompt(1)])
    epoch = await queue.epoch()
    await queue.claim(1)
    assert await queue.inventory("train") == {1: QueuePlace.QUEUED}
    assert await queue.epoch() == epoch


async def test_leases_that_expired_while_they_were_handed_out_are_given_back(
    rig: QueueRig, make_prompt: MakePrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call for them was repeated through an outage of Redis that was longer than a lease."""
    queue: Any = await rig.connect()
    if not isinstance(queue, RedisQueue):
        pytest.skip("the queue in memory has no outage")
    await queue.claim(1)
    await queue.push([make_prompt(0)])
    call, outages = queue._call, [LEASE_S + 1, 0.0]

    async def late(name: str, *arguments: Any) -> Any:
        answer = await call(name, *arguments)
        if name == "lease":
            rig.clock.time += outages.pop(0)
        return answer

    monkeypatch.setattr(queue, "_call", late)
    (leased,) = await queue.lease("a0", 1, "train", 1.0)
    assert (leased.prompt.attempt, outages) == (1, [])
    assert await queue.expire() == 0 and await queue.extend([leased]) == set()
