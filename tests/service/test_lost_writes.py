"""A queue that returns without its last writes, as after a fail-over: the run continues and loses nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import count
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

from olmorl.clock import run_simulated
from olmorl.config import QueueSettings
from olmorl.ports import EVERYONE, Row, Taken
from olmorl.queues.prompts.deliveries import StoredResult
from olmorl.queues.prompts.memory_queue import MemoryQueue, _Draw, _Held, _Lane

Build = Callable[..., Any]
BOUND = 32
"""The value of the composition root for batches of 8 and a lag of 2."""


class Forgetful(MemoryQueue):
    """A queue that restarts without some of its last writes."""

    starts = count(1)
    now = "0"
    meanwhile: tuple[str, Callable[[], Awaitable[None]]] | None = None
    """Called while the next answers of a lane are on their way."""
    last_trimmed: ClassVar[deque[tuple[str, int, StoredResult]]] = deque(maxlen=12)

    def another(self) -> Forgetful:
        return Forgetful(self._settings, self._bound, self._clock, self._run)

    async def epoch(self) -> str:
        return Forgetful.now

    async def take(self, limit: int, lane: str, wait_s: float) -> list[Taken]:
        taken = await super().take(limit, lane, wait_s)
        if taken and Forgetful.meanwhile and Forgetful.meanwhile[0] == lane:
            (_, happens), Forgetful.meanwhile = Forgetful.meanwhile, None
            await happens()
        return taken

    async def trim(self, taken: Sequence[Taken]) -> None:
        for item in taken:
            lane, entry = item.result.prompt.lane, int(item.entry)
            if stored := self._lane(lane).results.get(entry):
                self.last_trimmed.append((lane, entry, stored))
        await super().trim(taken)

    def lose(self, chance: Random) -> None:
        """Forget some writes of each kind: of pushes, leases, commits, trims and orders."""
        self._run.orders.clear()
        self._run.orders[EVERYONE] = "pause"
        for lane in self._run.lanes.values():
            self._forget_draws(lane, chance)
        for name, entry, stored in self.last_trimmed:
            self._bring_back(self._run.lanes[name], entry, stored, as_result=chance.random() < 0.5)
        self.last_trimmed.clear()
        Forgetful.now = str(next(Forgetful.starts))

    def _forget_draws(self, lane: _Lane, chance: Random) -> None:
        gone = {*list(lane.fresh)[-2:], *[held.draw_id for held in lane.leases.values()][-2:]}
        for entry, stored in list(lane.results.items()):
            if chance.random() < 0.5:
                del lane.results[entry]
                gone.add(stored.draw_id)
        for draw_id in gone:
            lane.prompts.pop(draw_id)
        lane.leases = {name: held for name, held in lane.leases.items() if held.draw_id not in gone}
        lane.fresh = deque(draw_id for draw_id in lane.fresh if draw_id not in gone)

    def _bring_back(self, lane: _Lane, entry: int, stored: StoredResult, as_result: bool) -> None:
        lane.prompts[stored.draw_id] = _Draw(b"?", 1, float("inf"))
        if as_result:
            lane.results = dict(sorted([*lane.results.items(), (entry, stored)]))
        else:
            lane.done.discard(stored.draw_id)
            lane.fresh.append(stored.draw_id)

    def lose_answers(self, draws: Collection[int]) -> None:
        """Lose the answers of these draws. The draws are leased again, to actors that are done with them."""
        lane, for_ever = self._run.lanes["train"], self._clock.wall() + 1e6
        for entry, stored in list(lane.results.items()):
            if stored.draw_id in draws:
                del lane.results[entry]
                lane.done.discard(stored.draw_id)
                lane.leases[f"lost/{stored.draw_id}"] = _Held(stored.draw_id, "actor-0", for_ever)
        Forgetful.now = str(next(Forgetful.starts))


class Worst(Random):
    """Everything that may be lost is."""

    def random(self) -> float:
        return 0.0


@pytest.fixture
def held_out() -> list[Row]:
    ids = [np.array([1000 + i, 7], np.int32) for i in range(20)]
    return [Row(f"held.jsonl:{i + 1}", "?", ids[i], ("math",), ("1",), {}, False) for i in range(20)]


@pytest.mark.parametrize("point", range(12))
def test_it_is_reconciled_while_the_run_goes_on(service: Build, held_out: list[Row], point: int) -> None:
    chance = Random(point)
    steps, max_lag = 15, chance.choice([0, 2])
    run = service(
        {"schedule.steps": steps, "schedule.max_lag": max_lag, "evaluation.every": 2}, evaluations={"held": held_out}
    )
    run.queue = Forgetful(QueueSettings(outage_deadline_s=20.0 / 1.5), BOUND, run.clock)

    async def scenario() -> int:
        await run.start()
        for step in (3, 6, 9):
            await run.steps(step)
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            run.queue.lose(chance)
        known = len(run.ledger)
        await run.finish()
        return known

    known = run_simulated(scenario())
    run.check_lines()
    assert len(run.lines) == steps
    assert {record["outcome"] for record in run.ledger} <= {"trained", "zero_gradient", "in_flight"}
    assert min(run.in_flight, default=known) >= known, "no draw from before the losses is left"
    assert len(run.in_flight) <= max_lag * 8
    assert max(record["attempt"] for record in run.ledger) > 1
    assert all(line["eval_held_prompts"] == 20 for line in run.lines if "eval_held_prompts" in line)
    assert run.lines[-1]["eval_held_version"] == steps
    assert not any(record["row"].startswith("held") for record in run.ledger)


@pytest.mark.parametrize("lane", ["train", "held"])
def test_answers_that_were_on_their_way_are_not_believed(service: Build, held_out: list[Row], lane: str) -> None:
    run = service({"schedule.steps": 12, "evaluation.every": 2}, evaluations={"held": held_out})
    run.queue = Forgetful(QueueSettings(outage_deadline_s=20.0 / 1.5), BOUND, run.clock)

    async def all_is_lost() -> None:
        run.queue.lose(Worst())
        if lane == "train":
            await run.orchestrator.draws.counts()

    async def scenario() -> None:
        await run.start()
        for step in (2, 4, 6, 8):
            await run.steps(step)
            Forgetful.meanwhile = (lane, all_is_lost)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert Forgetful.meanwhile is None
    assert len(run.lines) == 12
    assert max(record["attempt"] for record in run.ledger) > 1
    assert run.lines[-1]["eval_held_prompts"] == 20


def test_an_answer_that_was_here_and_is_lost_waits_for_no_lease(service: Build) -> None:
    run = service({"schedule.steps": 8})
    run.queue = Forgetful(QueueSettings(outage_deadline_s=20.0 / 1.5), BOUND, run.clock)

    async def scenario() -> list[int]:
        await run.start()
        await run.steps(3)
        ready = run.orchestrator.draws._batcher.ready
        await run.until(lambda: len(ready) >= 2)
        lost = list(ready._groups)
        run.queue.lose_answers(lost)
        await run.finish()
        return lost

    lost = run_simulated(scenario())
    run.check_lines()
    assert len(run.lines) == 8
    assert {record["attempt"] for record in run.ledger if record["prompt_id"] in lost} == {2}
    assert run.lines[-1]["wall_s"] < 1000
