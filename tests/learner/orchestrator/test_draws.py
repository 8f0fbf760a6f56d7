"""The life of a draw: it is in exactly one place, and the order of the writes survives a crash at any point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.errors import ResourceError, RunEnded
from olmorl.learner.orchestrator.batcher import Ending
from olmorl.learner.orchestrator.draws import DESCRIBE_S, Draws
from olmorl.learner.orchestrator.recovery import reconcile
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.ledger_state import LedgerState, Outcome
from olmorl.messages import TRAIN_LANE, Version
from olmorl.ports import QueuePlace

Build = Callable[..., Any]
V0 = Version(1, 0)


def test_draws_are_queued_and_counted_where_they_are(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(5, V0)
            await run.answer(1.0, 0.0, number=2)
            await run.queue.lease("a1", 1, TRAIN_LANE, 0.0)
            counts, in_flight = await run.draws.counts()
            assert (counts.queued, counts.leased, counts.results, in_flight) == (2, 1, 2, 5)
            taken = await run.take()
            await run.draws._write_batch(1, [(item, item.result) for item in taken])
            counts, in_flight = await run.draws.counts()
            assert (counts.results, run.draws.state.journaled, in_flight) == (0, 2, 5)
            await run.draws.train(1, 8)
            assert (await run.draws.counts())[1] == 3 == run.draws.live

    run_simulated(scenario())


def test_a_draw_that_is_nowhere_is_an_error(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(2, V0)
            await run.queue.withdraw([0], TRAIN_LANE)
            with pytest.raises(RunEnded, match=r"do not add up: 2 drawn.* 1 in flight"):
                await run.draws.counts()

    run_simulated(scenario())


def test_no_second_caller_sees_half_a_change(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[str]:
        order: list[str] = []
        async with parts().opened() as run:
            push = run.queue.push

            async def slow(prompts: Any) -> None:
                await asyncio.sleep(1)
                await push(prompts)
                order.append("drawn")

            async def count() -> None:
                await run.draws.counts()
                order.append("counted")

            monkeypatch.setattr(run.queue, "push", slow)
            run.draws.publish(V0)
            drawing = asyncio.create_task(run.draws.advance())
            await run.clock.sleep(0.5)
            assert run.draws.state.num_drawn > 0, "in the ledger, and not in the queue"
            await asyncio.gather(drawing, count())
        return order

    assert run_simulated(scenario()) == ["drawn", "counted"]


def test_every_change_waits_for_the_one_under_way(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            draws = run.draws
            calls = {
                "accept": (100, 0.0),
                "advance": (),
                "observe": ({},),
                "lose": ({"actor-0/17": 5},),
                "train": (1, 8),
                "complete": (1,),
                "counts": (),
                "replay_letters": (),
                "change": ("learner.learning_rate", 1e-7, "anna"),
                "resized": (1, 2, "anna"),
            }
            public = {name for name, each in vars(Draws).items() if iscoroutinefunction(each) and name[0] != "_"}
            assert public - calls.keys() == {"describe", "letters", "write_rollouts", "close"}, "they change no draw"
            async with draws._lock:
                waiting = [asyncio.create_task(getattr(draws, name)(*args)) for name, args in calls.items()]
                await asyncio.sleep(1)
                assert not any(call.done() for call in waiting)
                for call in waiting:
                    call.cancel()
                await asyncio.wait(waiting)

    run_simulated(scenario())


def test_the_files_close_after_the_change_under_way(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            draws, push = run.draws, run.queue.push

            async def slow(prompts: Any) -> None:
                await asyncio.sleep(1)
                await push(prompts)
                draws._ledger.append()  # it needs the open file

            monkeypatch.setattr(run.queue, "push", slow)
            draws.publish(V0)
            drawing = asyncio.create_task(draws.advance())
            await run.clock.sleep(0.5)
        await drawing
        await draws.advance()  # the last version may be published after the run

    run_simulated(scenario())


def test_an_outcome_is_recorded_before_its_result_is_trimmed(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            await run.draws._draw(1, V0)
            await run.answer(1.0, 1.0)
            (item,) = await run.take()
            with monkeypatch.context() as patch:
                patch.setattr(run.queue, "trim", _crash)
                with pytest.raises(ConnectionError):
                    await run.draws._decide([Ending(item, Outcome.ZERO_GRADIENT)])
        async with run.opened():
            assert run.outcomes == ["zero_gradient"]
            (again,) = await run.take()
            assert await run.draws._trim_decided([again]) == []
            assert (await run.draws.counts())[1] == 0
            assert await run.queue.inventory(TRAIN_LANE) == {}

    run_simulated(scenario())


async def _crash(*_: object) -> None:
    raise ConnectionError


def test_a_draw_that_never_reached_the_queue_is_queued_with_the_next_attempt(
    parts: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            with monkeypatch.context() as patch:
                patch.setattr(run.queue, "push", _crash)
                with pytest.raises(ConnectionError):
                    await run.draws._draw(2, V0)
        async with run.opened():
            assert (await run.draws.counts())[1] == 2, "lost ones are in flight too"
            assert (await run.draws.counts())[1] == 2, "and after a restart of the queue"
            await run.draws._draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert [(lease.prompt.draw_id, lease.prompt.attempt) for lease in leases] == [(0, 2), (1, 2)]

    run_simulated(scenario())


def test_lost_draws_are_booked_together_before_they_are_queued(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            await run.draws._draw(5, V0)
        await run.queue.flush(TRAIN_LANE)
        async with run.opened():
            before = run.draws._ledger.position.num_bytes
            writes: list[int] = []
            append = run.draws._ledger.append
            monkeypatch.setattr(
                run.draws._ledger, "append", lambda *events: (writes.append(len(events)), append(*events))
            )
            with monkeypatch.context() as patch:
                patch.setattr(run.queue, "push", _crash)
                with pytest.raises(ConnectionError):
                    await run.draws._draw(0, V0)
            assert writes == [5] and run.draws._ledger.position.num_bytes > before
        async with run.opened():
            await run.draws._draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert [lease.prompt.attempt for lease in leases] == [3] * 5

    run_simulated(scenario())


def test_a_result_that_the_queue_lost_waits_for_no_lease(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(2, V0)
            await run.queue.lease("a0", 2, TRAIN_LANE, 0.0)
            found = await reconcile(run.queue, run.draws.state, [1])
            assert (found.lost, found.leftovers, found.withdrawn) == ({1}, set(), set())
            assert await run.queue.inventory(TRAIN_LANE) == {0: QueuePlace.LEASED}
            await run.draws._begin_again("2")
            await run.draws._draw(0, V0)
            assert await run.queue.inventory(TRAIN_LANE) == {0: QueuePlace.LEASED, 1: QueuePlace.QUEUED}

    run_simulated(scenario())


def test_a_queue_of_another_run_is_refused(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(2, V0)
            with pytest.raises(ResourceError, match="2 prompts that this run never drew"):
                await reconcile(run.queue, LedgerState())

    run_simulated(scenario())


def test_a_journal_that_is_not_the_ledgers_is_refused(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(2, V0)
            await run.answer(1.0, 0.0, number=2)
            batch = [(item, item.result) for item in await run.take()]
            await run.draws._write_batch(1, batch)
            assert [group.prompt.draw_id for group in await run.draws._replay(1)] == [0, 1]
            run.draws._journal.write(1, 1, [group for _, group in reversed(batch)])
            with pytest.raises(ResourceError, match=r"000001\.batch: its groups differ from the ledger's"):
                await run.draws._replay(1)

    run_simulated(scenario())


def test_a_complete_checkpoint_names_the_ledger_after_its_step_and_frees_the_journal(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(4, V0)
            await run.answer(1.0, 0.0, number=4)
            taken = await run.take()
            for step in (1, 2):
                batch = [(item, item.result) for item in taken[2 * step - 2 : 2 * step]]
                await run.draws._write_batch(step, batch)
                await run.draws.train(step, 8)
                if step == 1:
                    position = run.draws._ledger.position
            checkpoint_dir.shares_of(run.files.checkpoints, 1, 1).mkdir(parents=True)
            await run.draws.complete(1)
            assert checkpoint_dir.steps(run.files.checkpoints) == [1]
            assert checkpoint_dir.read_part(run.files.checkpoints, 1).position == position
            assert [path.name for path in sorted(run.files.journal.iterdir())] == ["000002.batch"]

    run_simulated(scenario())


def restarts(run: Any, monkeypatch: pytest.MonkeyPatch, *epochs: str) -> None:
    """Have the queue answer with these epochs, then with the last one."""
    left = list(epochs)

    async def epoch() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(run.queue, "epoch", epoch)


def test_a_queue_that_was_not_restarted_must_add_up(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(3, V0)
            assert (await run.draws.counts())[1] == 3
            await run.queue.withdraw([1], TRAIN_LANE)
            with pytest.raises(RunEnded, match="do not add up"):
                await run.draws.counts()

    run_simulated(scenario())


def test_what_a_restart_lost_is_in_flight_and_queued_again(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(3, V0)
            await run.answer(1.0, 0.0)
            await run.settle()
            assert run.draws.num_ready == 1
            await run.queue.withdraw([1], TRAIN_LANE)
            restarts(run, monkeypatch, "2")
            assert (await run.draws.counts())[1] == 3 and run.draws.epoch == "2"
            assert run.draws.num_ready == 0, "the queue delivers its results again"
            await run.settle()
            assert run.draws.num_ready == 1
            await run.draws._draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert {lease.prompt.draw_id: lease.prompt.attempt for lease in leases} == {1: 2, 2: 1}

    run_simulated(scenario())


def test_a_restart_while_it_counts_is_no_error(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(3, V0)
            await run.queue.withdraw([1], TRAIN_LANE)
            restarts(run, monkeypatch, run.draws.epoch, "2")
            assert (await run.draws.counts())[1] == 3 and run.draws.epoch == "2"

    run_simulated(scenario())


def test_it_says_where_everything_is_or_that_it_is_blocked(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.draws._draw(3, V0)
            async with run.draws._lock:
                began = run.clock.now()
                assert "the orchestrator itself waits" in await run.draws.describe()
                assert run.clock.now() - began == DESCRIBE_S
                asking = asyncio.create_task(run.draws.describe())
                await asyncio.sleep(1)
            assert (await asking).startswith("0 groups are ready; of the prompts 3 are queued, 0 with actors, 0 back")

    run_simulated(scenario())
