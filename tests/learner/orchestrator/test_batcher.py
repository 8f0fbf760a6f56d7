"""Which groups become part of a batch, when, and how the others end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.errors import NothingToLearn, RunEnded
from olmorl.learner.storage.ledger_state import Retired
from olmorl.messages import TRAIN_LANE, ActorStatus, Version

Build = Callable[..., Any]
V0 = Version(1, 0)


def test_a_batch_is_built_from_the_first_groups_with_a_gradient(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw_allowed(V0)
            await run.answer(1.0, 1.0)
            await run.answer(1.0, 0.0)
            await run.settle()
            await run.draws._assemble()
            assert run.draws._batches == {} and run.draws.num_ready == 1
            await run.answer(0.0, 1.0)
            await run.settle()
            await run.draws._assemble()
            (shard,) = run.draws._batches[1].shards
            samples = [sample for minibatch in shard.minibatches for row in minibatch for sample in row]
            assert sorted({sample.draw_id for sample in samples}) == [1, 2]
            assert run.draws._batches[1].facts.groups == 2
            assert run.outcomes[:3] == ["zero_gradient", "-", "-"]
            assert run.draws.state.journaled == 2 and run.draws.num_ready == 0

    run_simulated(scenario())


@pytest.mark.parametrize(
    ("running", "waiting", "kv_used", "busy"),
    [(16, 0, 0.0, 0.25), (16, 0, 0.45, 0.5), (16, 0, 0.95, 1.0), (0, 1, 0.0, 1.0)],
)
def test_an_engine_is_as_busy_as_its_slots_or_its_cache(
    parts: Build, running: int, waiting: int, kv_used: float, busy: float
) -> None:
    async def scenario() -> None:
        async with parts({"actors.max_running": 64}).opened() as run:
            status = ActorStatus(name="a0", at=0.0, pid=1, running=running, waiting=waiting, kv_used=kv_used)
            run.draws._batcher.look_at_engines([status])
            assert run.draws._batcher._ahead._busy_now == [pytest.approx(busy)]

    run_simulated(scenario())


def test_at_most_one_batch_is_built_ahead(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"schedule.max_lag": 4}).opened() as run:
            await run.draws._draw(8, V0)
            await run.answer(1.0, 0.0, number=8)
            await run.settle()
            await run.draws._assemble()
            assert sorted(run.draws._batches) == [1, 2]
            await run.draws.train(1, 8)
            await run.draws._assemble()
            assert sorted(run.draws._batches) == [1, 2, 3]

    run_simulated(scenario())


async def with_a_late_group(run: Any) -> None:
    """Two groups are answered while draw 0 is still generated."""
    await run.draws._draw(3, V0)
    (late,) = await run.queue.lease("a1", 1, TRAIN_LANE, 0.0)
    await run.answer(1.0, 0.0, number=2)
    await run.settle()
    await run.draws._assemble()
    await run.finish(late, 1.0, 0.0)
    await run.settle()


def test_a_group_that_is_too_old_for_its_step_ends_as_stale(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"schedule.over_age": "mask", "schedule.prompts_per_step": 1}).opened() as run:
            await with_a_late_group(run)
            assert sorted(run.draws._batches) == [1, 2]
            await run.draws.train(1, 8)
            await run.draws._assemble()
            assert run.outcomes == ["stale", "trained", "-"]
            assert run.ledger[0]["cause"] == "over_age"

    run_simulated(scenario())


def test_a_batch_waits_for_a_group_that_it_would_make_too_old(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"schedule.over_age": "wait", "schedule.prompts_per_step": 1}).opened() as run:
            await with_a_late_group(run)
            assert run.draws._batches == {} and run.draws.num_ready == 3
            await run.draws._assemble()
            assert sorted(run.draws._batches) == [1, 2]
            assert run.outcomes == ["-", "-", "-"]

    run_simulated(scenario())


@pytest.mark.parametrize(("held_up_s", "early_draws"), [(0.0, 1), (5.0, 1), (15.0, 0)])
def test_draws_wait_for_the_version_to_come_after_a_straggler(parts: Build, held_up_s: float, early_draws: int) -> None:
    """A straggler holds up the learner at step 3, then steps of a second each follow one another."""

    async def scenario() -> None:
        async with parts({"schedule.max_lag": 2, "schedule.prompts_per_step": 1}).opened() as run:
            await run.draws._draw_allowed(V0)
            (late,) = await run.queue.lease("a1", 1, TRAIN_LANE, 0.0)
            await run.answer(1.0, 0.0, number=2)
            await run.settle()
            await run.draws._assemble()
            for step in (1, 2):
                await train(run, step)
                await run.draws._draw_allowed(Version(1, step))
                await run.answer(1.0, 0.0, version=Version(1, step))
            await run.settle()
            await run.draws._assemble()
            assert run.draws.num_ready == 2 and run.draws._batcher.waits_for_unfinished
            await run.clock.sleep(held_up_s)
            await run.finish(late, 1.0, 0.0)
            await run.settle()
            await run.draws._assemble()
            await train(run, 3)
            await run.draws._draw_allowed(Version(1, 3))
            assert run.draws.state.num_drawn == 5 + early_draws, "steps 4 and 5 are about to train"
            for step in (4, 5):
                await train(run, step)
            await run.draws._draw_allowed(Version(1, 5))
            assert run.draws.state.num_drawn == 8, "no newer version can come"

    run_simulated(scenario())


async def train(run: Any, step: int) -> None:
    """Train a step in one second, and build the next batches."""
    await run.clock.sleep(1.0)
    await run.draws.train(step, 1)
    await run.draws._assemble()


def test_too_many_groups_without_a_gradient_end_the_run(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(4, V0)
            await run.answer(0.0, 0.0, number=3)
            await run.settle()
            await run.answer(0.0, 0.0)
            with pytest.raises(NothingToLearn, match="4 groups in a row"):
                await run.settle()
            assert run.outcomes == ["zero_gradient"] * 4, "they are recorded first"

    run_simulated(scenario())


def test_failures_count_until_a_group_is_scored(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(8, V0)
            await run.fail("unscorable", "judge_down: refused", number=3)
            await run.settle()
            assert run.draws._batcher.streaks.failed == 3
            row = run.ledger[2]["row"]
            assert run.draws._batcher.streaks.failures == (
                f"3 prompt(s) in a row gave no scored group, the last: {row}: unscorable: judge_down: refused"
            )
            await run.answer(1.0, 0.0)
            await run.settle()
            assert (*run.draws.failures,) == (0, "")
            await run.fail("unscorable", "broken", number=4)
            with pytest.raises(RunEnded, match=r"4 prompt.*correct the verifier"):
                await run.settle()

    run_simulated(scenario())


def test_a_malformed_group_fails(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"sampling.group_size": 3}).opened() as run:
            await run.draws._draw(1, V0)
            await run.answer(1.0, 0.0)
            await run.settle()
            assert run.ledger[0]["cause"] == "malformed: 2 completions in a group of 3"
            assert run.outcomes == ["failed"]

    run_simulated(scenario())


def test_a_group_from_before_the_reference_was_in_the_recipe_ends_as_stale(parts: Build) -> None:
    served = {"objective.kl_beta": 0.1, "objective.kl_reference": {"url": "http://start:8000"}}

    async def scenario() -> None:
        async with parts(served).opened() as run:
            await run.draws._draw_allowed(V0)
            await run.answer(1.0, 0.0)
            await run.settle()
            assert (run.outcomes[0], run.ledger[0]["cause"]) == ("stale", "no_reference") and run.draws.num_ready == 0

    run_simulated(scenario())


def test_a_solved_row_is_never_drawn_again(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"data.no_resample_above": 0.9}, num_rows=2).opened() as run:
            await run.draws._draw(1, V0)
            await run.answer(1.0, 1.0)
            await run.settle()
            solved = run.ledger[0]["row"]
            await run.draws._draw(3, V0)
            assert solved not in [run.ledger[draw]["row"] for draw in (1, 2, 3)]

    run_simulated(scenario())


def test_solved_rows_are_written_together_and_once(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts({"data.no_resample_above": 0.9}, num_rows=9).opened() as run:
            await run.draws._draw(4, V0)
            await run.answer(1.0, 1.0, number=3)
            await run.answer(1.0, 0.0)
            booked: list[tuple[Any, ...]] = []
            book = run.draws._book

            async def note(*events: Any) -> None:
                booked.append(events)
                await book(*events)

            monkeypatch.setattr(run.draws, "_book", note)
            await run.settle()
            retired = [[event.row for event in events if isinstance(event, Retired)] for events in booked]
            assert [len(names) for names in retired] == [3, 0]
            await run.draws._retire(retired[0])
            assert len(booked) == 2, "results that come again retire nothing again"

    run_simulated(scenario())


def test_the_end_of_the_data_ends_what_cannot_fill_a_batch(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"data.epochs": 1, "schedule.max_lag": 4}, num_rows=3).opened() as run:
            await run.draws._draw(8, V0)
            await run.answer(1.0, 0.0, number=2)
            await run.settle()
            await run.draws._assemble()
            await run.draws._end_of_stream()
            assert not run.draws.over, "one draw is still generated"
            await run.answer(1.0, 0.0)
            await run.settle()
            await run.draws._end_of_stream()
            assert run.draws.over and run.outcomes == ["-", "-", "stale"]
            assert run.ledger[2]["cause"] == "end_of_data"

    run_simulated(scenario())


def test_data_that_fill_no_batch_are_an_error(parts: Build) -> None:
    async def scenario() -> None:
        async with parts({"data.epochs": 1}, num_rows=2).opened() as run:
            await run.draws._draw(8, V0)
            await run.answer(1.0, 1.0, number=2)
            await run.settle()
            await run.draws._end_of_stream()
            with pytest.raises(RunEnded, match=r"before the first step.*2 zero-gradient"):
                await run.settle()

    run_simulated(scenario())


def test_a_restart_builds_the_journaled_batch_again(parts: Build) -> None:
    async def scenario() -> None:
        run, batches = parts(), []
        async with run.opened():
            await run.draws._draw(2, V0)
            await run.answer(1.0, 0.0, number=2)
            await run.settle()
            await run.draws._assemble()
            batches.append(run.draws._batches[1].facts)
        async with run.opened():
            await run.draws._assemble()
            batches.append(run.draws._batches[1].facts)
        assert batches[0] == batches[1]

    run_simulated(scenario())


@pytest.mark.parametrize("leased", [False, True])
def test_a_batch_waits_for_no_draw_that_is_still_in_the_queue(parts: Build, leased: bool) -> None:
    async def scenario() -> None:
        async with parts({"schedule.prompts_per_step": 1, "schedule.max_lag": 1}).opened() as run:
            await run.draws._draw(4, V0)
            await run.answer(1.0, 0.0, number=2)
            await run.settle()
            await run.draws._assemble()
            # Two draws of version 0 are unfinished. Step 2 is the last that could train their tokens of version 0.
            assert sorted(run.draws._batches) == []
            assert run.draws._batcher.waits_for_unfinished
            if leased:
                await run.queue.lease("a1", 2, TRAIN_LANE, 0.0)
            await run.draws.observe({"a0": ActorStatus(name="a0", at=0.0, pid=1, version=Version(1, 2))})
            await run.draws._assemble()
            assert sorted(run.draws._batches) == ([] if leased else [1, 2])

    run_simulated(scenario())
