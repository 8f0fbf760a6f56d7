"""The life of a draw: it is in exactly one place, and the order of the writes survives a crash at any point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.errors import ResourceError, RunEnded
from olmorl.learner.orchestrator.draw_lifecycle import Ending, reconcile
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.ledger_state import LedgerState, Outcome
from olmorl.messages import TRAIN_LANE, Version
from olmorl.ports import QueuePlace

Build = Callable[..., Any]
V0 = Version(1, 0)


def test_draws_are_queued_and_counted_where_they_are(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(5, V0)
            await run.answer(1.0, 0.0, number=2)
            await run.queue.lease("a1", 1, TRAIN_LANE, 0.0)
            counts, in_flight = await run.lifecycle.counts()
            assert (counts.queued, counts.leased, counts.results, in_flight) == (2, 1, 2, 5)
            taken = await run.take()
            await run.lifecycle.journal(1, [(item, item.result) for item in taken])
            counts, in_flight = await run.lifecycle.counts()
            assert (counts.results, run.lifecycle.state.journaled, in_flight) == (0, 2, 5)
            await run.lifecycle.train(1, 8, 0)
            assert (await run.lifecycle.counts())[1] == 3 == run.lifecycle.live

    run_simulated(scenario())


def test_a_draw_that_is_nowhere_is_an_error(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(2, V0)
            await run.queue.withdraw([0], TRAIN_LANE)
            with pytest.raises(RunEnded, match=r"do not add up: 2 drawn.* 1 in flight"):
                await run.lifecycle.counts()

    run_simulated(scenario())


def test_no_second_caller_sees_half_a_change(parts: Build) -> None:
    async def scenario() -> list[str]:
        run, order = parts(), []

        async def count() -> None:
            async with run.lifecycle.exclusive():
                await run.lifecycle.counts()
                order.append("counted")

        async with run.opened():
            counting = asyncio.create_task(count())
            await run.lifecycle.draw(3, V0)
            await asyncio.sleep(1)
            order.append("drawn")
        await counting
        return order

    assert run_simulated(scenario()) == ["drawn", "counted"]


def test_a_change_outside_of_the_turn_is_refused(parts: Build) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            pass
        for call in (run.lifecycle.counts(), run.lifecycle.draw(1, V0), run.lifecycle.reconcile([])):
            with pytest.raises(AssertionError):
                await call

    run_simulated(scenario())


def test_an_outcome_is_recorded_before_its_result_is_trimmed(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            await run.lifecycle.draw(1, V0)
            await run.answer(1.0, 1.0)
            (item,) = await run.take()
            with monkeypatch.context() as patch:
                patch.setattr(run.queue, "trim", _crash)
                with pytest.raises(ConnectionError):
                    await run.lifecycle.decide([Ending(item, Outcome.ZERO_GRADIENT)])
        async with run.opened():
            assert run.outcomes == ["zero_gradient"]
            (again,) = await run.take()
            assert await run.lifecycle.trim_decided([again]) == []
            assert (await run.lifecycle.counts())[1] == 0
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
                    await run.lifecycle.draw(2, V0)
        async with run.opened():
            assert (await run.lifecycle.counts())[1] == 2, "lost ones are in flight too"
            assert (await run.lifecycle.reconcile([])).lost == set(), "a restart of the queue did not lose them"
            await run.lifecycle.draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert [(lease.prompt.draw_id, lease.prompt.attempt) for lease in leases] == [(0, 2), (1, 2)]

    run_simulated(scenario())


def test_lost_draws_are_booked_together_before_they_are_queued(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = parts()
        async with run.opened():
            await run.lifecycle.draw(5, V0)
        await run.queue.flush(TRAIN_LANE)
        async with run.opened():
            before = run.lifecycle._ledger.position.num_bytes
            writes: list[int] = []
            append = run.lifecycle._ledger.append
            monkeypatch.setattr(
                run.lifecycle._ledger, "append", lambda *events: (writes.append(len(events)), append(*events))
            )
            with monkeypatch.context() as patch:
                patch.setattr(run.queue, "push", _crash)
                with pytest.raises(ConnectionError):
                    await run.lifecycle.draw(0, V0)
            assert writes == [5] and run.lifecycle._ledger.position.num_bytes > before
        async with run.opened():
            await run.lifecycle.draw(0, V0)
            leases = await run.queue.lease("a0", 9, TRAIN_LANE, 0.0)
            assert [lease.prompt.attempt for lease in leases] == [3] * 5

    run_simulated(scenario())


def test_a_result_that_the_queue_lost_waits_for_no_lease(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(2, V0)
            await run.queue.lease("a0", 2, TRAIN_LANE, 0.0)
            found = await run.lifecycle.reconcile([1])
            assert (found.lost, found.leftovers, found.withdrawn) == ({1}, set(), set())
            assert await run.queue.inventory(TRAIN_LANE) == {0: QueuePlace.LEASED}
            await run.lifecycle.draw(0, V0)
            assert await run.queue.inventory(TRAIN_LANE) == {0: QueuePlace.LEASED, 1: QueuePlace.QUEUED}

    run_simulated(scenario())


def test_a_queue_of_another_run_is_refused(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(2, V0)
            with pytest.raises(ResourceError, match="2 prompts that this run never drew"):
                await reconcile(run.queue, LedgerState())

    run_simulated(scenario())


def test_a_journal_that_is_not_the_ledgers_is_refused(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(2, V0)
            await run.answer(1.0, 0.0, number=2)
            batch = [(item, item.result) for item in await run.take()]
            await run.lifecycle.journal(1, batch)
            assert [group.prompt.draw_id for group in await run.lifecycle.replay(1)] == [0, 1]
            run.lifecycle._journal.write(1, 1, [group for _, group in reversed(batch)])
            with pytest.raises(ResourceError, match=r"000001\.batch: its groups differ from the ledger's"):
                await run.lifecycle.replay(1)

    run_simulated(scenario())


def test_a_complete_checkpoint_names_the_ledger_after_its_step_and_frees_the_journal(parts: Build) -> None:
    async def scenario() -> None:
        async with parts().opened() as run:
            await run.lifecycle.draw(4, V0)
            await run.answer(1.0, 0.0, number=4)
            taken = await run.take()
            for step in (1, 2):
                batch = [(item, item.result) for item in taken[2 * step - 2 : 2 * step]]
                await run.lifecycle.journal(step, batch)
                await run.lifecycle.train(step, 8, 0)
                if step == 1:
                    position = run.lifecycle._ledger.position
            checkpoint_dir.shares_of(run.files.checkpoints, 1, 1).mkdir(parents=True)
            await run.lifecycle.complete(1)
            assert checkpoint_dir.steps(run.files.checkpoints) == [1]
            assert checkpoint_dir.read_part(run.files.checkpoints, 1).position == position
            assert [path.name for path in sorted(run.files.journal.iterdir())] == ["000002.batch"]

    run_simulated(scenario())
