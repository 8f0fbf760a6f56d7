"""The work of each rank, the reports that the learner owes, and when a checkpoint is complete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from olmorl import config
from olmorl.clock import LoopClock, run_simulated
from olmorl.errors import DeadlinePassed
from olmorl.learner.batching.batch import Batch, BatchFacts
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.rank_coordinator import RankCoordinator
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.waits import Waits
from olmorl.messages import Save, Shard, Stage, Stop, Version

QUESTION = "the learner to ask for a step"
FACTS = BatchFacts(groups=0, tokens=0, trained_tokens=0, reward_mean=0.0, lag_mean=0.0, lag_max=0)


@dataclass
class Batches:
    """The part of `Draws` that the coordinator uses."""

    batches: dict[int, Batch] = field(default_factory=dict)
    over: bool = False
    done: int = 4
    saved: int | None = None
    published: Version | None = None

    def batch(self, step: int) -> Batch | None:
        return self.batches.get(step)

    def take_batch(self, step: int) -> Batch:
        return self.batches.pop(step)


class Case:
    """A coordinator of two ranks, and what it works with."""

    def __init__(self, steps: int = 9) -> None:
        self.settings = config.build(
            {
                "run": {"mode": "simulated"},
                "schedule": {"steps": steps},
                "learner": {"batch_deadline_s": 50},
            }
        )
        self.waits = Waits(LoopClock())
        self.control = RunControl(cast(Any, None), self.waits)
        self.source = Batches()
        draws = cast(Draws, self.source)
        self.ranks = RankCoordinator(self.settings, draws, self.control, self.waits, 2, replay_to=4)

    def add(self, step: int, publish: bool = True) -> None:
        """One more batch is ready."""
        shards = [
            Shard(step=step, minibatches=(), loss_tokens=(float(rank),), num_sequences=(), publish=publish)
            for rank in range(2)
        ]
        self.source.batches[step] = Batch(tuple(shards), FACTS)
        self.waits.notify()

    @property
    def listed(self) -> list[str]:
        return [wait.what for wait in self.waits.current()]


def test_each_rank_gets_its_own_shard_and_the_same_again() -> None:
    async def scenario() -> None:
        case = Case()
        asking = asyncio.create_task(case.ranks.next(1, 5))
        await asyncio.sleep(10)
        assert not asking.done()
        case.add(5)
        first, second = await case.ranks.next(0, 5), await asking
        assert isinstance(first, Shard) and isinstance(second, Shard)
        assert (first.loss_tokens, second.loss_tokens) == ((0.0,), (1.0,))
        assert case.source.batches == {}, "handed out"
        assert await case.ranks.next(1, 5) is second
        assert case.ranks.batch(5).shards == (first, second)

    run_simulated(scenario())


def test_a_batch_that_all_ranks_have_finished_is_forgotten() -> None:
    async def scenario() -> None:
        case = Case()
        case.add(5)
        case.add(6)
        for rank, step in ((0, 5), (1, 5), (0, 6)):
            await case.ranks.next(rank, step)
        assert case.ranks.batch(5)
        await case.ranks.next(1, 6)
        with pytest.raises(KeyError):
            case.ranks.batch(5)

    run_simulated(scenario())


def test_a_stop_holds_for_every_rank_that_has_no_batch_and_for_no_other() -> None:
    async def scenario() -> None:
        case = Case()
        case.add(5)
        case.add(6)
        await case.ranks.next(0, 5)
        case.control.stop()
        assert isinstance(await case.ranks.next(1, 5), Shard), "rank 0 trains this step already"
        for rank in range(2):
            assert await case.ranks.next(rank, 6) == (stop := await case.ranks.next(0, 6))
            assert isinstance(stop, Stop) and not stop.export

    run_simulated(scenario())


def test_the_end_of_the_run_or_of_the_data_exports_the_policy() -> None:
    async def scenario() -> None:
        case = Case(steps=5)
        stop = await case.ranks.next(0, 6)
        assert isinstance(stop, Stop) and stop.export and stop.reason == "all 5 steps are done"
        case.source.over = True
        stop = await case.ranks.next(0, 5)
        assert isinstance(stop, Stop) and stop.export and stop.reason == "the data ended after 4 steps"

    run_simulated(scenario())


def test_no_batch_in_time_is_named_and_a_pause_stops_the_deadline() -> None:
    async def scenario() -> float:
        case = Case()
        case.waits.paused = True
        asking = asyncio.create_task(case.ranks.next(0, 5))
        await asyncio.sleep(1000)
        case.waits.paused = False
        case.waits.notify()
        with pytest.raises(DeadlinePassed, match="waited 50 s for the batch of step 5, which the orchestrator owns"):
            await asking
        assert case.listed == []
        return LoopClock().now()

    assert run_simulated(scenario()) == 1050.0


def test_a_save_comes_once_to_each_rank_before_its_next_step() -> None:
    async def scenario() -> None:
        case = Case()
        case.add(5)
        case.add(6)
        await case.ranks.next(0, 5)
        assert case.ranks.request_save() == case.ranks.request_save() == 5
        assert isinstance(await case.ranks.next(1, 5), Shard), "after the step that another rank has begun"
        for rank in range(2):
            assert isinstance(await case.ranks.next(rank, 6), Save)
            assert isinstance(await case.ranks.next(rank, 6), Shard)
        case.source.done = 5
        assert not case.ranks.has_saved(5)
        case.source.saved = 5
        assert case.ranks.has_saved(5) and case.ranks.request_save() == 5, "there is one already"

    run_simulated(scenario())


def test_rank_0_owes_for_all_and_nothing_while_it_has_no_answer() -> None:
    async def scenario() -> None:
        case = Case()
        case.ranks.expect_question()
        case.add(5)
        await case.ranks.next(1, 5)
        assert case.listed == [QUESTION]
        case.ranks.request_save()
        await case.ranks.next(0, 5)
        assert case.listed == ["the report of step 5"]
        case.ranks.reported(5)
        assert case.listed == []
        case.ranks.expect_question()
        assert isinstance(await case.ranks.next(0, 6), Save)
        assert case.listed == [QUESTION]
        asking = asyncio.create_task(case.ranks.next(0, 6))
        await asyncio.sleep(1)
        assert case.listed == ["the batch of step 6"]
        asking.cancel()
        await asyncio.wait([asking])
        case.ranks.end_before(6, Stop(reason="done"))
        assert case.listed == ["the learner's end, its export included"]

    run_simulated(scenario())


def test_a_step_that_was_given_up_owes_no_report() -> None:
    async def scenario() -> None:
        case = Case()
        case.add(5)
        assert isinstance(await case.ranks.next(0, 5), Shard)
        assert case.listed == ["the report of step 5"]
        case.ranks.end_before(5, Stop(reason="asked"))
        assert case.listed == ["the learner's end, its export included"]

    run_simulated(scenario())


def test_a_checkpoint_is_complete_with_the_last_share() -> None:
    case = Case()

    async def scenario() -> None:
        assert not case.ranks.share_written(0, 5)
        assert not case.ranks.share_written(0, 5), "the same share again"
        assert case.listed == ["all shares of the checkpoint of step 5"]
        assert case.ranks.share_written(1, 5)
        assert case.listed == []

    run_simulated(scenario())


def test_the_run_is_over_when_its_last_step_is_recorded_and_saved() -> None:
    async def scenario() -> None:
        case = Case()
        case.add(5)
        await case.ranks.next(0, 5)
        case.ranks.end_before(6, Stop(reason="asked"))
        assert case.ranks.finished is None, "rank 0 has not reported step 5"
        case.source.done = 5
        assert case.ranks.finished is None
        case.source.saved = 5
        assert (stop := case.ranks.finished) and stop.reason == "asked"

    run_simulated(scenario())


def test_the_last_version_is_that_of_the_last_batch_that_publishes() -> None:
    async def scenario() -> None:
        case = Case()
        assert not case.ranks.all_published
        case.source.published = Version(1, 4)
        assert case.ranks.all_published
        case.add(5)
        case.add(6, publish=False)
        await case.ranks.next(0, 5)
        await case.ranks.next(0, 6)
        assert not case.ranks.all_published
        case.source.published = Version(1, 5)
        assert case.ranks.all_published

    run_simulated(scenario())


def test_the_waits_of_a_step_name_its_stage() -> None:
    async def scenario() -> list[list[Stage | None]]:
        case = Case()
        stages = []

        def note() -> None:
            stages.append([wait.stage for wait in case.waits.current()])

        case.ranks.expect_question()
        note()
        asking = asyncio.create_task(case.ranks.next(0, 5))
        await asyncio.sleep(1)
        note()
        case.add(5)
        await asking
        note()
        case.ranks.reported(5)
        note()
        return stages

    assert run_simulated(scenario()) == [[Stage.ASKING], [Stage.BATCH], [Stage.TRAINING], []]
