"""Checkpoints in the background: the loop continues, one write at a time, and a failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.clock import LoopClock, run_simulated
from olmorl.errors import DeadlinePassed, DiskFull, ResourceError
from olmorl.learner.background import unless_failed
from olmorl.learner.checkpoint_writer import CheckpointWriter
from olmorl.messages import Begin
from tests.waiting import set_deadline

WRITE_S = 10.0


class SlowDisk:
    """A trainer whose shares take `WRITE_S` to write; `troubles` are raised first, one by one."""

    def __init__(self) -> None:
        self.state = "before"
        self.troubles: list[Exception] = []
        self.written: list[tuple[str, str, float]] = []

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        return partial(self._write, f"{folder.parent.name}/{folder.name}", self.state)

    async def _write(self, folder: str, state: str) -> None:
        if self.troubles:
            raise self.troubles.pop(0)
        await asyncio.sleep(WRITE_S)
        self.written.append((folder, state, LoopClock().now()))


class Orchestrator:
    def __init__(self) -> None:
        self.saved_steps: list[tuple[int, int]] = []

    async def saved(self, rank: int, step: int) -> None:
        self.saved_steps.append((rank, step))


class Case:
    def __init__(self, tmp_path: Path) -> None:
        self.disk: Any = SlowDisk()
        self.orchestrator: Any = Orchestrator()
        self.settings = config.build({"run": {"directory": tmp_path}})

    def saver(self, begun_at: int = 0, checkpoint: str | None = None) -> CheckpointWriter:
        begin = Begin(incarnation=2, step=begun_at, checkpoint=checkpoint)
        return CheckpointWriter(1, self.disk, self.orchestrator, LoopClock(), begin, self.settings)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_the_loop_goes_on_and_the_next_save_waits(case: Case) -> None:
    async def scenario() -> list[float]:
        clock, times = LoopClock(), []
        async with case.saver() as saver:
            for step in (4, 8):
                case.disk.state = f"after {step}"
                await saver.save(step)
                case.disk.state = "later"
                times.append(clock.now())
                await clock.sleep(3.0)
        return [*times, clock.now()]

    assert run_simulated(scenario()) == [0.0, WRITE_S, 2 * WRITE_S]
    assert case.disk.written == [("step_4/learner.2", "after 4", 10.0), ("step_8/learner.2", "after 8", 20.0)]
    assert case.orchestrator.saved_steps == [(1, 4), (1, 8)]


def test_a_step_is_saved_once(case: Case) -> None:
    async def scenario() -> None:
        async with case.saver(begun_at=3, checkpoint="step_3") as saver:
            for step in (3, 4, 4):
                await saver.save(step)

    run_simulated(scenario())
    assert case.orchestrator.saved_steps == [(1, 4)]


@pytest.mark.parametrize("where", ["meanwhile", "next", "end"])
def test_a_share_that_cannot_be_written_ends_the_run(case: Case, where: str) -> None:
    case.disk.troubles = [ResourceError("share_1: Input/output error")]

    async def scenario() -> float:
        with pytest.raises(ResourceError, match="Input/output error"):
            async with case.saver() as saver:
                await saver.save(4)
                if where == "meanwhile":
                    await unless_failed(asyncio.sleep(1000.0), saver)
                if where == "next":
                    await saver.save(8)
        return LoopClock().now()

    assert run_simulated(scenario()) == 0.0
    assert not case.orchestrator.saved_steps


def test_a_full_disk_is_waited_for_while_the_loop_goes_on(case: Case) -> None:
    case.disk.troubles = [DiskFull("share_1: No space left on device")] * 30

    async def scenario() -> float:
        async with case.saver() as saver:
            await saver.save(4)
            await unless_failed(asyncio.sleep(20.0), saver)
            assert LoopClock().now() == 20.0
        return LoopClock().now()

    assert run_simulated(scenario()) == 30.0 + WRITE_S
    assert case.orchestrator.saved_steps == [(1, 4)]


def test_a_disk_that_takes_too_long_ends_the_run_by_name(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    set_deadline(monkeypatch, "checkpoint_s", 5)

    async def scenario() -> None:
        with pytest.raises(DeadlinePassed, match=r"waited 5 s for the disk to take step 4's share of learner rank 1"):
            async with case.saver() as saver:
                await saver.save(4)
                await unless_failed(asyncio.sleep(1000.0), saver)

    run_simulated(scenario())


def test_another_failure_of_the_loop_waits_for_no_disk(case: Case) -> None:
    async def scenario() -> float:
        with pytest.raises(ZeroDivisionError):
            async with case.saver() as saver:
                await saver.save(4)
                raise ZeroDivisionError
        return LoopClock().now()

    assert run_simulated(scenario()) == 0.0
    assert not case.orchestrator.saved_steps
