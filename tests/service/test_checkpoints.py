"""Checkpoints during training, with crashes and full disks during the write."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from olmorl.clock import run_simulated
from olmorl.errors import DiskFull, ResourceError, RunEnded
from olmorl.learner.storage import checkpoint_dir, durable_files, rollout_log
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import Shard

Build = Callable[..., Any]
SYNCHRONOUS = {"schedule.max_lag": 0, "schedule.steps": 12, "checkpoint.every": 4}


class SlowTrainer(FakeTrainer):
    """Rank 1 takes a little longer than rank 0 to write its share; remembers its weights after every step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.after: dict[int, bytes] = {}

    async def train(self, shard: Shard) -> dict[str, float] | None:
        values = await super().train(shard)
        self.after[shard.step] = self.weights
        return values

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        return partial(self._later, super().save(folder))

    async def _later(self, write: Callable[[], Awaitable[None]]) -> None:
        await self._clock.sleep(1.0 * self._rank)
        await write()


def complete(run: Any) -> list[int]:
    return checkpoint_dir.steps(run.run_dir / "checkpoints")


def shares(run: Any, step: int) -> list[bytes]:
    folder = checkpoint_dir.shares(run.run_dir / "checkpoints", step)
    return [(folder / f"rank_{rank}").read_bytes() for rank in range(2)]


def test_steps_go_on_while_a_checkpoint_of_an_earlier_one_is_written(service: Build) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 4, "simulation.save_s": 9.0}, trainer=SlowTrainer)

    async def scenario() -> int:
        await run.start()
        await run.until(lambda: complete(run) == [4])
        steps = len(run.lines)
        await run.finish()
        return steps

    assert run_simulated(scenario()) > 5
    assert complete(run) == [4, 8, 12]
    for step in (4, 8, 12):
        assert shares(run, step) == [trainer.after[step] for trainer in run.trainers]
    run.check_lines()


def test_the_ledger_of_a_checkpoint_ends_with_its_step(service: Build) -> None:
    run = service({"schedule.steps": 20, "checkpoint.every": 5, "simulation.save_s": 9.0}, trainer=SlowTrainer)

    async def scenario() -> None:
        await run.start()
        await run.until(lambda: complete(run) == [5])
        await run.steps(12)
        await run.crash(actors=False)
        part = checkpoint_dir.read_part(run.run_dir / "checkpoints", 5)
        ledger = (run.run_dir / "ledger" / "000001.jsonl").read_bytes()[: part.ledger_bytes]
        last = json.loads(ledger.splitlines()[-1])
        assert (last["event"], last["step"]) == ("trained", 5)
        await run.start(resume=True, from_step=5)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert [line["incarnation"] for line in run.lines] == [1] * 5 + [2] * 15


@pytest.mark.parametrize("shares_there", [0, 1])
def test_a_crash_while_a_checkpoint_is_written_goes_back_to_the_one_before(service: Build, shares_there: int) -> None:
    whole = service(SYNCHRONOUS, seed_attempts=False, trainer=SlowTrainer)
    run_simulated(whole.run())
    run = service({**SYNCHRONOUS, "simulation.save_s": 5.0}, seed_attempts=False, trainer=SlowTrainer)
    folder = run.run_dir / "checkpoints" / "step_8" / "learner.1"

    async def scenario() -> tuple[list[int], list[str]]:
        await run.start()
        if shares_there:
            await run.until((folder / "rank_0").exists)
        else:
            await run.steps(8)
        await run.crash(actors=True)
        before = complete(run), sorted(path.stem for path in (run.run_dir / "journal").glob("*.batch"))
        await run.start(resume=True)
        assert not folder.parent.exists()
        await run.finish()
        return before

    before, journal = run_simulated(scenario())
    assert before == [4]
    assert journal[:4] == ["000005", "000006", "000007", "000008"]
    assert complete(run) == [4, 8, 12]
    assert run.trained == whole.trained
    assert [trainer.weights for trainer in run.trainers] == [trainer.weights for trainer in whole.trainers]
    assert run.lines[4]["incarnation"] == 2
    run.check_lines()


class LostShare(SlowTrainer):
    """Rank 1 cannot write its share of step 8."""

    async def _later(self, write: Callable[[], Awaitable[None]]) -> None:
        if self._rank == 1 and 8 in self.after:
            raise RunEnded("rank 1 lost its disk")
        await super()._later(write)


def test_a_rank_that_cannot_write_its_share_ends_the_run_and_completes_nothing(service: Build) -> None:
    run = service({"schedule.steps": 16, "checkpoint.every": 4}, trainer=LostShare)
    with pytest.raises(RunEnded, match="rank 1 lost its disk"):
        run_simulated(run.run())
    assert complete(run) == [4]


def test_a_stop_waits_for_the_checkpoint(service: Build) -> None:
    run = service({"schedule.steps": 100, "checkpoint.every": 50, "simulation.save_s": 20.0}, trainer=SlowTrainer)

    async def scenario() -> float:
        await run.start()
        await run.steps(3)
        run.orchestrator.control.stop()
        stopped_at = run.clock.now()
        await run.finish()
        return float(run.clock.now() - stopped_at)

    assert run_simulated(scenario()) > 20.0
    assert complete(run) == [len(run.lines)]


def test_the_last_complete_checkpoint_stays_while_the_next_is_written(service: Build) -> None:
    often = {"schedule.steps": 12, "checkpoint.every": 2, "checkpoint.keep": 1, "simulation.save_s": 1.0}
    run = service(often, trainer=SlowTrainer)
    seen: set[tuple[int, ...]] = set()

    async def watch() -> None:
        while True:
            seen.add(tuple(complete(run)))
            await asyncio.sleep(0.5)

    async def scenario() -> None:
        await run.start()
        await run.until(lambda: complete(run) == [2])
        watching = asyncio.create_task(watch())
        await run.finish()
        watching.cancel()

    run_simulated(scenario())
    assert {len(steps) for steps in seen} == {1}
    assert complete(run) == [12]


class FullDisk:
    """The disk of a run: full from one moment of simulated time to another."""

    def __init__(self, run: Any, begins: float, ends: float) -> None:
        self._run, self._begins, self._ends = run, begins, ends
        self.refused = 0

    def sync(self, descriptor: int) -> None:
        if self._begins <= self._run.clock.now() < self._ends:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)


@pytest.mark.parametrize("begins", [0.5, 7.0, 11.0, 16.0])
def test_a_run_waits_while_the_disk_is_full_and_loses_nothing(
    service: Build, monkeypatch: pytest.MonkeyPatch, begins: float
) -> None:
    whole = service(SYNCHRONOUS, seed_attempts=False)
    run_simulated(whole.run())
    run = service(SYNCHRONOUS, seed_attempts=False)
    disk = FullDisk(run, begins, begins + 60.0)
    monkeypatch.setattr(durable_files, "sync", disk.sync)

    async def scenario() -> tuple[list[str], int, int]:
        await run.start()
        await asyncio.sleep(begins + 50.0 - run.clock.now())
        waits, (done, *_) = [wait.what for wait in run.orchestrator.waits.current()], await run.orchestrator.progress()
        await asyncio.sleep(9.0)
        later, *_ = await run.orchestrator.progress()
        await run.finish()
        return waits, done, later

    waits, done, later = run_simulated(scenario())
    assert done == later < 12
    assert any("No space left on device" in wait for wait in waits)
    assert disk.refused > 20
    assert run.trained == whole.trained
    assert run.trainers[0].weights == whole.trainers[0].weights
    assert all(record["attempt"] == 1 for record in run.ledger)
    run.check_lines()


def test_a_start_waits_for_room_too(service: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = service(SYNCHRONOUS)

    async def scenario() -> float:
        await run.start()
        await run.steps(3)
        await run.crash(actors=False)
        resumed_at = float(run.clock.now())
        disk = FullDisk(run, resumed_at, resumed_at + 60.0)
        monkeypatch.setattr(durable_files, "sync", disk.sync)
        await run.start(resume=True)
        assert disk.refused > 20
        waited_s = float(run.clock.now()) - resumed_at
        await run.finish()
        return waited_s

    assert 59.0 < run_simulated(scenario()) < 65.0
    run.check_lines()


def test_a_disk_that_stays_full_ends_the_run_by_name_and_another_start_goes_on(
    service: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = service({**SYNCHRONOUS, "deadlines.checkpoint_s": 100}, seed_attempts=False)

    async def scenario() -> float:
        with monkeypatch.context() as patch:
            patch.setattr(durable_files, "sync", FullDisk(run, 7.0, 10_000.0).sync)
            await run.start()
            with pytest.raises(
                DiskFull,
                match=r"No space left on device: the disk of .* make room there, then .*there was none within 100 s",
            ):
                await run.finish()
        ended_at = float(run.clock.now())
        await run.start(resume=True)
        await run.finish()
        return ended_at

    assert 107.0 <= run_simulated(scenario()) < 130.0
    run.check_lines()
    assert len(run.lines) == 12
    assert not run.in_flight


@pytest.mark.parametrize(
    ("keep", "steps"),
    [("all", range(1, 13)), ("every 5", [5, 10]), ("last 2", [11, 12])],
)
def test_rollouts_of_the_steps_that_are_asked_for_are_kept(service: Build, keep: str, steps: Iterable[int]) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 4, "checkpoint.rollouts": keep})
    run_simulated(run.run())
    run.check_lines()
    files = rollout_log.files(run.run_dir / "rollouts")
    assert {rollout_log.step_of(path) for path in files} - {13} == set(steps)
    assert [line["step"] for line in run.lines] == list(range(1, 13))


def test_a_start_reads_the_ledger_from_the_newest_checkpoint_on(
    service: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage before the checkpoint does not stop a start, and is named by what reads the whole ledger."""
    run = service({"schedule.steps": 12, "checkpoint.every": 4})

    async def scenario() -> None:
        await run.start()
        await run.until(lambda: complete(run)[-1:] == [8])
        await run.crash(actors=True)
        path = run.run_dir / "ledger" / "000001.jsonl"
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        await run.start(resume=True)
        state = run.orchestrator.draws.state
        assert min(state.batches, default=9) > 8 and len(state.open) < state.num_drawn / 2
        await run.finish()

    run_simulated(scenario())
    assert [line["step"] for line in run.lines] == list(range(1, 13))
    assert all(line["draws_unaccounted"] == 0 for line in run.lines)
    with pytest.raises(ResourceError, match=r"000001\.jsonl:\d+: damaged"):
        _ = run.ledger
