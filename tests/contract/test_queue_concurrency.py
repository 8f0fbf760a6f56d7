"""Many actors at once, which die and dawdle: each draw still ends with exactly one result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from olmorl.messages import Group, Prompt
from olmorl.ports import CommitOutcome, Queue

if TYPE_CHECKING:
    from tests.contract.conftest import QueueRig

NUM_ACTORS, NUM_DRAWS, LEASE_S = 20, 500, 60.0


async def act(queue: Queue, name: str, chance: random.Random, make_group: Callable[[Prompt], Group]) -> int:
    """One actor until cancelled; returns nothing useful by dying, dawdling, giving back, or commits once or twice."""
    while True:
        for lent in await queue.lease(name, chance.randint(1, 4), "train", 0.02):
            fate = chance.random()
            if fate < 0.1:
                await queue.give_back([lent])
            elif fate < 0.3:
                continue
            else:
                await queue.commit(lent, make_group(lent.prompt))
                if fate > 0.9:
                    assert await queue.commit(lent, make_group(lent.prompt)) is not CommitOutcome.STORED


async def test_each_draw_ends_once_and_counts_conserve(
    rig: QueueRig, make_prompt: Callable[..., Prompt], make_group: Callable[[Prompt], Group]
) -> None:
    orchestrator = await rig.connect(bound=NUM_DRAWS)
    await orchestrator.claim(1)
    actors = [await rig.connect(bound=NUM_DRAWS) for _ in range(4)]
    chance = random.Random(0)
    await orchestrator.push([make_prompt(n) for n in range(NUM_DRAWS)])
    tasks = [
        asyncio.create_task(act(actors[n % 4], f"actor-{n}", random.Random(n), make_group)) for n in range(NUM_ACTORS)
    ]
    outcomes: dict[int, int] = {}
    trimmed = 0
    try:
        async with asyncio.timeout(60):
            while trimmed < NUM_DRAWS:
                # A lease of an idle draw expires at once. Used leases race with this, as in a run.
                rig.clock.time += chance.choice([1.0, LEASE_S])
                await orchestrator.expire()
                await orchestrator.release_dead_actor(f"actor-{chance.randrange(NUM_ACTORS)}")
                taken = await orchestrator.take(20, "train", 0.01)
                for item in taken:
                    outcomes[item.draw_id] = outcomes.get(item.draw_id, 0) + 1
                assert (await orchestrator.counts("train")).live + trimmed == NUM_DRAWS
                await orchestrator.trim(taken)
                trimmed += len(taken)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
    assert outcomes == dict.fromkeys(range(NUM_DRAWS), 1)
    assert await orchestrator.inventory("train") == {}
