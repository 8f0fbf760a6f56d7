"""Crashes at any moment and resumes: every draw ends once, no draw is trained twice, no finished work is wasted."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from olmorl import config
from olmorl.clock import run_simulated
from olmorl.errors import ResourceError, Superseded, UserError
from olmorl.learner.orchestrator.evaluation import Evaluator
from olmorl.learner.storage import checkpoint_dir, durable_files
from olmorl.learner.storage.journal import Journal
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import Owner, Shard, Version
from olmorl.queues.weights.memory_store import MemoryWeightStore
from tests.learner.storage.test_rollout_writer import writing_processes

Build = Callable[..., Any]
POINTS = range(20)


def tear(run: Any) -> None:
    """Leaves the files of a crash during a write: half a line, half a file, a checkpoint without its marker."""
    ledger = sorted((run.run_dir / "ledger").glob("*.jsonl"))[-1]
    with ledger.open("ab") as file:
        file.write(b'{"event":"decided","draw":3,"att')
    with (run.run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "incarn')
    (run.run_dir / "journal").mkdir(exist_ok=True)
    (run.run_dir / "journal" / "000099.batch.partial").write_bytes(b"\x07\x00")
    folder = run.run_dir / "checkpoints" / "step_99"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rank_0").write_bytes(b"half")


async def crash_again_and_again(run: Any, random: Random, actors: bool) -> Any:
    """Start, crash and resume, three times, then let it end; returns its stop."""
    await run.start()
    for _ in range(3):
        if await run.ended_within(random.uniform(0.0, 25.0)):
            break
        await run.crash(actors=actors)
        tear(run)
        await run.start(resume=True)
    return await run.finish()


@pytest.mark.parametrize("point", POINTS)
def test_a_finite_stream_ends_with_one_outcome_for_each_draw(service: Build, point: int) -> None:
    random = Random(point)
    run = service(
        {"schedule.steps": 1000, "schedule.max_lag": random.choice([0, 1, 4]), "data.epochs": 1}, num_rows=130
    )
    stop = run_simulated(crash_again_and_again(run, random, actors=bool(point % 2)))
    assert "the data ended" in stop.reason
    run.check_lines()
    ledger = run.ledger
    assert [record["prompt_id"] for record in ledger] == list(range(130))
    assert {record["row"] for record in ledger} == {f"train.jsonl:{i + 1}" for i in range(130)}
    assert all(record["outcome"] != "in_flight" for record in ledger)
    assert [len(draws) for draws in run.trained.values()] == [8] * len(run.lines)
    assert run.lines[-1]["groups_in_flight"] < 8 * 3


def trained_sequence(run: Any) -> list[list[int]]:
    return [run.trained[step] for step in sorted(run.trained)]


@pytest.mark.parametrize("point", POINTS)
def test_synchronous_runs_train_the_same_groups_with_and_without_crashes(service: Build, point: int) -> None:
    overrides = {"schedule.steps": 10, "schedule.max_lag": 0}
    whole = service(overrides, seed_attempts=False)
    run_simulated(whole.run())
    broken = service(overrides, seed_attempts=False)
    run_simulated(crash_again_and_again(broken, Random(100 + point), actors=bool(point % 2)))
    assert trained_sequence(broken) == trained_sequence(whole)
    assert [t.weights for t in broken.trainers] == [t.weights for t in whole.trainers]


def test_a_restart_replays_the_journal_and_generates_nothing_again(service: Build) -> None:
    run = service({"schedule.steps": 30, "checkpoint.every": 10, "schedule.max_lag": 4})

    async def scenario() -> tuple[bytes, bytes]:
        await run.start()
        await run.steps(17)
        before, weights = run.trained, run.trainers[0].weights
        await run.crash(actors=False)
        await run.start(resume=True)
        await run.steps(17)
        replayed = run.trainers[0].weights
        after = run.trained
        assert {step: after[step] for step in before} == before
        await run.finish()
        return weights, replayed

    weights, replayed = run_simulated(scenario())
    assert replayed == weights
    run.check_lines()
    assert all(record["attempt"] == 1 for record in run.ledger)
    records = [(record["prompt_id"], record["attempt"]) for record in run.rollouts]
    assert len(records) == len(set(records)) == run.lines[-1]["prompts_drawn_total"] - len(run.in_flight)
    assert [line["incarnation"] for line in run.lines] == [1] * 10 + [2] * 20
    assert len((run.run_dir / "abandoned" / "000002" / "metrics.jsonl").read_text().splitlines()) == 7


class SlowTrainer(FakeTrainer):
    """A step takes two minutes."""

    async def train(self, shard: Shard) -> dict[str, float] | None:
        await asyncio.sleep(120)
        return await super().train(shard)


def test_a_replay_that_takes_long_costs_no_actor_and_no_attempt(service: Build) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 10, "schedule.max_lag": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(8)
        await run.crash(actors=True)
        run.trainer, run.store = SlowTrainer, MemoryWeightStore()
        await run.start(resume=True)
        actors = list(run._actor_tasks.values())
        await run.steps(9)
        assert not any(actor.done() for actor in actors)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert run.settings.actors.stall_deadline_s < 8 * 120
    assert max(record["attempt"] for record in run.ledger) == 2, "what was leased when all crashed"
    assert not any(record["outcome"] == "failed" for record in run.ledger)


@pytest.mark.parametrize("steps", [3, 4, 5, 6])
def test_a_run_that_is_to_have_fewer_steps_ends_with_its_last_version(service: Build, steps: int) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 4, "schedule.max_lag": 4})

    async def scenario() -> Any:
        await run.start()
        await run.steps(7)
        await run.crash(actors=True)
        run.settings = config.build({**run.settings.model_dump(), "schedule": {**schedule, "steps": steps}})
        run.store = MemoryWeightStore()
        await run.start(resume=True)
        assert await run.ended_within(600)
        return await run.finish()

    schedule = run.settings.schedule.model_dump()
    stop = run_simulated(scenario())
    assert stop.reason == f"all {steps} steps are done" and stop.export
    run.check_lines()
    last = max(steps, 4)
    assert (len(run.lines), run.store.latest()) == (last, Version(2, last))


def test_what_was_wasted_before_a_crash_stays_wasted(service: Build) -> None:
    run = service({"schedule.steps": 20, "checkpoint.every": 50, "schedule.over_age": "drop", "schedule.max_lag": 1})

    async def scenario() -> int:
        await run.start()
        await run.steps(16)
        wasted = run.lines[15]["tokens_wasted_total"]
        await run.crash(actors=False)
        await run.start(resume=True)
        await run.finish()
        return int(wasted)

    wasted = run_simulated(scenario())
    run.check_lines()
    assert run.lines[15]["tokens_wasted_total"] >= wasted > 0


def test_a_report_that_waits_for_the_disk_is_not_owed_by_the_learner(service: Build) -> None:
    run = service({"schedule.steps": 4}, trainer=SlowTrainer)

    def owed() -> list[str]:
        return [wait.what for wait in run.orchestrator.waits.current() if wait.owner is Owner.LEARNER]

    def published() -> int:
        version = run.orchestrator.draws.published
        return version.number if version else 0

    async def scenario() -> None:
        await run.start()
        # While version 1 is being published, the learner cannot publish version 2, and does not report.
        await run.until(lambda: owed() == ["the report of step 2"] and published() == 1)
        async with run.orchestrator.draws._lock:
            await asyncio.sleep(200)
            assert owed() == [], "it has reported, and cannot go on"
        await run.finish()

    run_simulated(scenario())
    run.check_lines()


def test_journaled_steps_behind_a_gap_are_never_adopted(service: Build) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 10, "schedule.max_lag": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(7)
        await run.crash(actors=False)
        Journal(run.run_dir / "journal").path_of(3).unlink()
        await run.start(resume=True)
        await run.steps(3)
        await run.crash(actors=False)
        assert (run.run_dir / "abandoned" / "000002" / "journal" / "000005.batch").exists()
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert len(set(chain(*trained_sequence(run)))) == 12 * 8


def test_going_back_by_choice_abandons_what_came_after(service: Build) -> None:
    run = service({"schedule.steps": 20, "checkpoint.every": 5})

    async def scenario() -> tuple[list[list[int]], int]:
        await run.start()
        await run.until((run.run_dir / "checkpoints" / "step_15" / "complete").exists)
        await run.crash(actors=False)
        before = trained_sequence(run)
        await run.start(resume=True, from_step=5)
        known = len(run.ledger)
        await run.finish()
        return before, known

    before, known = run_simulated(scenario())
    run.check_lines()
    after = trained_sequence(run)
    assert after[:5] == before[:5]
    assert [line["incarnation"] for line in run.lines] == [1] * 5 + [2] * 15
    assert len(set(chain(*after))) == 20 * 8
    assert min(run.in_flight, default=known) >= known > 0, "no draw from before the checkpoint is left"
    assert len(run.in_flight) <= run.settings.schedule.max_lag * 8
    moved = run.run_dir / "abandoned" / "000002"
    assert sorted(path.name for path in (moved / "checkpoints").iterdir()) == ["step_10", "step_15"]
    assert (moved / "ledger" / "000001.jsonl").exists()


def test_a_queue_that_an_earlier_run_in_this_folder_used_is_refused_and_nothing_is_left(service: Build) -> None:
    run = service({"schedule.steps": 3})

    async def scenario() -> None:
        await run.run()
        shutil.rmtree(run.run_dir)
        for _ in range(2):
            with pytest.raises(ResourceError, match=r"held an earlier run.* --run.name"):
                await run.start()
            assert not list((run.run_dir / "ledger").glob("*.jsonl"))

    run_simulated(scenario())


@pytest.mark.parametrize("moves", range(9))
def test_going_back_is_resumed_wherever_a_crash_cut_it_off(
    service: Build, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    run = service({"schedule.steps": 12, "checkpoint.every": 5})

    async def scenario() -> None:
        await run.start()
        for step in (6, 8, 11):
            await run.steps(step)
            await run.crash(actors=False)
            await run.start(resume=True)
        await run.crash(actors=False)
        move, left = shutil.move, moves

        def cut_off(*arguments: Any) -> Any:
            nonlocal left
            if not left:
                raise PowerCut
            left -= 1
            return move(*arguments)

        with monkeypatch.context() as patched, pytest.raises(PowerCut):
            patched.setattr(shutil, "move", cut_off)
            await run.start(resume=True, from_step=5)
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert len(set(chain(*trained_sequence(run)))) == 12 * 8


def test_replayed_steps_that_a_crash_kept_from_the_rollouts_are_recorded(service: Build) -> None:
    run = service({"schedule.steps": 9, "checkpoint.every": 20, "schedule.max_lag": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(5)
        await run.crash(actors=False)
        for step in (2, 4, 5):
            (file,) = (run.run_dir / "rollouts").glob(f"step_{step:06d}.1.*")
            file.unlink()
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    trained = [(record["step"], record["prompt_id"]) for record in run.rollouts if record["outcome"] == "trained"]
    assert sorted(trained) == sorted((step, draw) for step, draws in run.trained.items() for draw in draws)


def test_a_journal_that_is_not_the_ledgers_is_named(service: Build) -> None:
    run = service({"schedule.steps": 30, "checkpoint.every": 10, "schedule.max_lag": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(5)
        await run.crash(actors=False)
        journal = Journal(run.run_dir / "journal")
        journal.write(3, 1, journal.read(3)[::-1])
        await run.start(resume=True)
        await run.steps(5)

    with pytest.raises(ResourceError, match=r"000003\.batch: its groups differ from the ledger's; remove it"):
        run_simulated(scenario())


def test_a_start_that_another_has_followed_writes_nothing_more(service: Build) -> None:
    run = service({"schedule.steps": 50, "checkpoint.every": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(5)
        await run.until(lambda: not run.orchestrator.draws._lock.locked())
        (run.run_dir / "ledger" / "000002.jsonl").touch()  # elsewhere, and by another Redis
        before = contents(run.run_dir)
        assert before
        with pytest.raises(Superseded):
            await run.orchestrator.draws.complete(5)
        async with run.orchestrator.draws._lock:
            with pytest.raises(Superseded):
                await run.orchestrator.draws._write_batch(99, [])
        with pytest.raises(Superseded):
            await run.until(lambda: False)
        assert contents(run.run_dir) == before

    run_simulated(scenario())


def contents(run_dir: Path) -> dict[Path, bytes]:
    """The files that a start depends on, by path."""
    files = [path for path in run_dir.rglob("*") if path.is_file() and path.parent.name != "rollouts"]
    return {path: path.read_bytes() for path in files}


def test_more_epochs_train_a_run_on_that_used_up_its_data(service: Build) -> None:
    run = service({"schedule.steps": 1000, "data.epochs": 1}, num_rows=70)

    async def scenario() -> tuple[Any, int, Any]:
        first, done = await run.run(), len(run.lines)
        run.settings = run.settings.model_copy(update={"data": run.settings.data.model_copy(update={"epochs": 2})})
        await run.start(resume=True)
        return first, done, await run.finish()

    first, done, second = run_simulated(scenario())
    assert first.reason == f"the data ended after {done} steps"
    assert second.reason == f"the data ended after {len(run.lines)} steps" and len(run.lines) > done
    assert [record["prompt_id"] for record in run.ledger] == list(range(140))


class PowerCut(Exception):
    """The machine dies in the middle of a durable write."""


@pytest.mark.parametrize("point", POINTS)
def test_a_power_cut_at_any_durable_write_loses_nothing(
    service: Build, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    run = service({"schedule.steps": 1000, "data.epochs": 1, "checkpoint.every": 2}, num_rows=70)
    writes, last = 0, 1 + 3 * point
    torn_bytes = 9 * (point % 2)

    def sync(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if writes == last:
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - torn_bytes))
            raise PowerCut
        os.fsync(descriptor)

    monkeypatch.setattr(durable_files, "sync", sync)

    async def scenario() -> Any:
        try:
            await run.start()
            return await run.finish()
        except (PowerCut, ResourceError):
            await run.crash(actors=True)
        await run.start(resume=True)
        return await run.finish()

    assert "the data ended" in run_simulated(scenario()).reason
    assert writes > last
    run.check_lines()
    assert [record["prompt_id"] for record in run.ledger] == list(range(70))
    assert all(record["outcome"] != "in_flight" for record in run.ledger)
    assert [len(draws) for draws in run.trained.values()] == [8] * len(run.lines)


def test_a_run_is_only_continued_when_asked_to(service: Build) -> None:
    run = service({"schedule.steps": 2})
    run_simulated(run.run())
    with pytest.raises(UserError, match="--resume"):
        run_simulated(run.start())


def test_an_older_start_is_shut_out(service: Build) -> None:
    run = service({"schedule.steps": 50})

    async def scenario() -> None:
        await run.start()
        await run.steps(3)
        older = list(run._tasks)
        await run.start(resume=True)
        ends = await asyncio.gather(*older, return_exceptions=True)
        assert {type(end) for end in ends} == {Superseded}
        await run.steps(6)
        await run.crash(actors=True)

    run_simulated(scenario())
    run.check_lines()


def test_prompts_that_the_queue_lost_are_queued_again(service: Build) -> None:
    run = service({"schedule.steps": 8, "schedule.max_lag": 4})

    async def scenario() -> int:
        await run.start()
        await run.steps(2)
        await run.crash(actors=True)
        known = len(run.ledger)
        heir = run.queue.another()
        await heir.claim(50)
        await heir.flush("train")
        for number in range(2, 51):
            (run.run_dir / "ledger" / f"{number:06d}.jsonl").touch()
        await run.start(resume=True)
        await run.finish()
        return known

    known = run_simulated(scenario())
    run.check_lines()
    assert {record["attempt"] for record in run.ledger} == {1, 2}
    assert min(run.in_flight, default=known) >= known, "no draw from before the crash is left"


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_a_ledger_that_lost_its_end_is_the_authority_all_the_same(service: Build, lines: int) -> None:
    run = service({"schedule.steps": 8, "schedule.max_lag": 4})

    async def scenario() -> int:
        await run.start()
        await run.steps(2)
        ledger = run.run_dir / "ledger" / "000001.jsonl"
        await run.until(lambda: b'"drawn"' in b"".join(ledger.read_bytes().splitlines()[-lines:]))
        await run.crash(actors=True)
        kept = ledger.read_bytes().splitlines(keepends=True)
        ledger.write_bytes(b"".join(kept[:-lines]) + kept[-lines][:20])
        with pytest.raises(ResourceError, match=r"000001.jsonl: cut after .* or remove 000001.size to go on"):
            await run.start(resume=True)
        ledger.with_suffix(".size").unlink()
        known = len(run.ledger)
        await run.start(resume=True)
        await run.finish()
        return known

    known = run_simulated(scenario())
    run.check_lines()
    assert min(run.in_flight, default=known) >= known, "no draw from before the crash is left"
    assert [record["prompt_id"] for record in run.ledger] == list(range(len(run.ledger)))


@pytest.mark.parametrize("num_bytes", [300, 3000, 12_000])
def test_a_cut_ledger_is_left_behind_by_going_back(service: Build, num_bytes: int) -> None:
    """The cut is after the newest checkpoint, before it, and near the first line."""
    run = service({"schedule.steps": 12, "checkpoint.every": 4})

    async def scenario() -> int:
        await run.start()
        await run.until(lambda: checkpoint_dir.steps(run.run_dir / "checkpoints")[-1:] == [8])
        await run.crash(actors=True)
        path = run.run_dir / "ledger" / "000001.jsonl"
        path.write_bytes(path.read_bytes()[:-num_bytes])
        with pytest.raises(ResourceError, match=r"cut .* --resume --from-step 8 goes on without it"):
            await run.start(resume=True)
        await run.start(resume=True, from_step=8)
        await run.finish()
        return len(path.read_bytes())

    left = run_simulated(scenario())
    assert [line["step"] for line in run.lines] == list(range(1, 13))
    assert all(line["draws_unaccounted"] == 0 for line in run.lines)
    part = checkpoint_dir.read_part(run.run_dir / "checkpoints", 8)
    if left < part.ledger_bytes:
        with pytest.raises(ResourceError, match=r"000001.jsonl: cut after"):
            _ = run.ledger


def test_a_start_that_is_cancelled_while_it_closes_ends_its_process(service: Build) -> None:
    run = service({"schedule.steps": 50})

    async def scenario() -> None:
        await run.start()
        await run.steps(2)
        draws, tasks = run.orchestrator.draws, run._tasks

        async def close() -> None:
            await asyncio.sleep(2.0)
            await type(draws).close(draws)

        draws.close = close
        assert writing_processes()
        for _ in range(2):
            tasks[0].cancel()
            await asyncio.sleep(1.0)
        await run.crash(actors=True)
        assert not writing_processes()

    run_simulated(scenario())


def test_a_start_that_fails_half_way_leaves_no_task_and_no_process(
    service: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = service()

    async def fail(evaluator: Evaluator, *_: Any) -> None:
        await evaluator._rollouts.restart_evaluation(1, "held")
        raise ResourceError("no room")

    monkeypatch.setattr(Evaluator, "start", fail)

    async def scenario() -> None:
        with pytest.raises(ResourceError, match="no room"):
            await run.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not writing_processes()

    run_simulated(scenario())


def test_an_inconsistent_queue_starts_again(service: Build) -> None:
    run = service({"schedule.steps": 8, "schedule.max_lag": 4})

    async def scenario() -> int:
        await run.start()
        await run.steps(2)
        lane = run.queue._run.lanes["train"]
        await run.until(lambda: lane.results)
        await run.crash(actors=True)
        known = len(run.ledger)
        lane.again.append(next(iter(lane.results.values())).draw_id)
        await run.start(resume=True)
        await run.finish()
        return known

    known = run_simulated(scenario())
    run.check_lines()
    assert min(run.in_flight, default=known) >= known, "no draw from before the crash is left"
