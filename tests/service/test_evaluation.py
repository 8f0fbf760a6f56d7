"""Evaluation during training: on time, in its own lanes, never in the training ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from olmorl import config
from olmorl.clock import LoopClock, run_simulated
from olmorl.config import QueueSettings
from olmorl.errors import DataError, RunEnded
from olmorl.learner.orchestrator.evaluation import MOST_LIVE, Evaluator
from olmorl.learner.storage import rollout_log
from olmorl.messages import Failure, Version
from olmorl.metrics import answered_by, of_evaluation
from olmorl.ports import Row
from olmorl.queues.prompts.memory_queue import MemoryQueue

Build = Callable[..., Any]


@pytest.fixture
def held_out() -> list[Row]:
    ids = [np.array([1000 + i, 7], np.int32) for i in range(20)]
    return [Row(f"held.jsonl:{i + 1}", "?", ids[i], ("math",), ("1",), {}, False) for i in range(20)]


def versions(run: Any) -> list[int]:
    return [line["eval_held_version"] for line in run.lines if "eval_held_version" in line]


def test_it_answers_at_the_start_on_time_and_at_the_end(service: Build, held_out: list[Row]) -> None:
    run = service(
        {"evaluation.every": 5, "evaluation.samples": 4, "evaluation.temperature": 1.0, "schedule.steps": 18},
        evaluations={"held": held_out},
    )
    run_simulated(run.run())
    run.check_lines()
    assert versions(run) == [0, 5, 10, 15, 18]
    assert run.lines[-1]["eval_held_version"] == 18
    for line in run.lines:
        if "eval_held_version" in line:
            assert line["eval_held_prompts"] == 20
            assert line["eval_held_failed"] == 0
            assert line["eval_held_version_newest"] >= line["eval_held_version"]
            assert line["eval_held_accuracy"] <= line["eval_held_pass_at_2"] <= line["eval_held_pass_at_4"] <= 1
    assert not any(record["row"].startswith("held") for record in run.ledger)


def answers(run: Any) -> dict[str, list[dict[str, Any]]]:
    """The records of every evaluation round that ended, by the begin of its file."""
    paths = rollout_log.evaluation_files(run.run_dir / "rollouts")
    return {path.name.removesuffix(".jsonl.zst"): list(rollout_log.read(path)) for path in paths}


def test_every_answer_is_in_the_rollouts_and_every_version_that_answered_in_the_line(
    service: Build, held_out: list[Row]
) -> None:
    run = service(
        {
            "evaluation.every": 5,
            "evaluation.samples": 4,
            "evaluation.temperature": 1.0,
            "schedule.steps": 18,
        },
        evaluations={"held.out": held_out},
        evaluation_share=0.05,
    )
    run_simulated(run.run())
    run.check_lines()
    lines = [line for line in run.lines if "eval_held.out_version" in line]
    files = answers(run)
    assert list(files) == [f"evaluation_{line['eval_held.out_version']:06d}.held.out.1" for line in lines]
    for line, records in zip(lines, files.values(), strict=True):
        assert sorted(record["row"] for record in records) == sorted(row.row for row in held_out)
        assert {(record["outcome"], record["step"]) for record in records} == {("evaluation", None)}
        completions = [each for record in records for each in record["completions"]]
        assert sum(each["solved"] for each in completions) / len(completions) == pytest.approx(
            line["eval_held.out_accuracy"]
        )
        numbers = {number for each in completions for number, _, _ in each["versions"]}
        told = (line["eval_held.out_version_oldest"], line["eval_held.out_version_newest"])
        assert told == (min(numbers), max(numbers)) and told[0] >= line["eval_held.out_version"]
    assert any("-" in answered_by(line, "eval_held.out_accuracy") for line in lines), (
        "some rounds took several versions"
    )
    assert not any(record["outcome"] == "evaluation" for record in run.rollouts), "they are no training groups"


def test_going_back_takes_later_evaluations_out_of_the_rollouts(service: Build, held_out: list[Row]) -> None:
    run = service({"evaluation.every": 5, "schedule.steps": 20, "checkpoint.every": 5}, evaluations={"held": held_out})

    async def scenario() -> None:
        await run.start()
        await run.until((run.run_dir / "checkpoints" / "step_15" / "complete").exists)
        await run.crash(actors=True)
        await run.start(resume=True, from_step=5)
        moved = rollout_log.evaluation_files(run.run_dir / "abandoned" / "000002" / "rollouts")
        assert {rollout_log.step_of(path) for path in moved} >= {10}
        left = rollout_log.evaluation_files(run.run_dir / "rollouts")
        assert {rollout_log.step_of(path) for path in left} == {0, 5}
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert [name for name in answers(run) if name.endswith(".2")] == [
        f"evaluation_{version:06d}.held.2" for version in versions(run) if version >= 5
    ]


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_first_evaluation_is_told_also_where_it_ends_after_the_last_step(
    service: Build, held_out: list[Row], steps: int
) -> None:
    changes = {"evaluation.samples": 32, "evaluation.temperature": 1.0}
    run = service(changes | {"schedule.steps": steps}, evaluations={"held": held_out}, evaluation_share=0.02)
    run_simulated(run.run())
    run.check_lines()
    assert versions(run) == [0, steps]
    assert [line["eval_held_version"] for line in run.lines[-2:]] == [0, steps]


def test_where_long_answers_are_dropped_those_of_an_evaluation_are_not(service: Build, held_out: list[Row]) -> None:
    run = service(
        {
            "evaluation.every": 5,
            "evaluation.samples": 16,
            "evaluation.temperature": 1.0,
            "schedule.steps": 18,
            "schedule.over_age": "drop",
            "schedule.max_lag": 1,
        },
        evaluations={"held": held_out},
        evaluation_share=0.1,
    )
    run_simulated(run.run())
    assert [line["eval_held_failed"] for line in run.lines if "eval_held_failed" in line] == [0] * len(versions(run))
    assert versions(run)[-1] == 18


@pytest.mark.parametrize("every", [4, 100])
def test_what_is_known_of_replayed_versions_is_kept(service: Build, held_out: list[Row], every: int) -> None:
    run = service(
        {"evaluation.every": 5, "schedule.steps": 30, "checkpoint.every": every}, evaluations={"held": held_out}
    )

    async def scenario() -> list[dict[str, Any]]:
        await run.start()
        await run.steps(23)
        before = run.lines
        for step in (22, 23):
            await run.crash(actors=True)
            await run.start(resume=True)
            await run.steps(step)
        await run.finish()
        return before

    before = run_simulated(scenario())
    run.check_lines()
    kept = list(map(of_evaluation, before))
    assert sum(map(bool, kept)) >= 4
    assert list(map(of_evaluation, run.lines))[: len(kept)] == kept
    assert set(versions(run)) >= {0, 5, 10, 15, 30} and len(set(versions(run))) == len(versions(run))


def test_what_is_known_when_people_stop_a_run_is_written_down(service: Build, held_out: list[Row]) -> None:
    run = service({"evaluation.every": 5, "schedule.steps": 60}, evaluations={"held": held_out})

    def known() -> int | None:
        """The version whose results are known and in no line, while no report comes that would take them along."""
        waits = [wait.what for wait in run.orchestrator.waits.current()]
        idle = any(what.startswith("the batch of step") for what in waits)
        return run.orchestrator._evaluator._fields.get("eval_held_version") if idle else None

    async def scenario() -> tuple[int | None, int]:
        await run.start()
        await run.steps(2)
        await run.until(known)
        version, steps = known(), len(run.lines)
        run.orchestrator.control.stop()
        await run.finish()
        return version, steps

    version, steps = run_simulated(scenario())
    run.check_lines()
    assert len(run.lines) == steps, "no step came after the stop"
    assert version is not None and versions(run) == list(range(0, version + 1, 5))
    assert run.lines[-1]["eval_held_version"] == version


def test_a_resume_that_is_refused_cuts_no_line(service: Build, held_out: list[Row]) -> None:
    run = service({"evaluation.every": 5, "schedule.steps": 30, "checkpoint.every": 10}, evaluations={"held": held_out})

    async def scenario() -> bytes:
        await run.start()
        await run.steps(17)
        await run.crash(actors=True)
        before = (run.run_dir / "metrics.jsonl").read_bytes()
        right = run.settings
        run.settings = right.model_copy(update={"run": right.run.model_copy(update={"seed": 7})})
        with pytest.raises(DataError, match=r"run\.seed was 0 and is 7"):
            await run.start(resume=True)
        run.settings = right
        return before

    before = run_simulated(scenario())
    assert (run.run_dir / "metrics.jsonl").read_bytes() == before


def test_data_that_ends_before_the_first_step_is_an_error_with_its_cause(service: Build, held_out: list[Row]) -> None:
    run = service({"data.epochs": 1}, num_rows=4, evaluations={"held": held_out})
    with pytest.raises(RunEnded, match=r"before the first step, .* of 4 prompts drawn .*schedule\.prompts_per_step"):
        run_simulated(run.run())
    assert not (run.run_dir / "export").exists(), "the untouched model is no result"


def test_a_round_that_gets_no_answers_is_closed_at_its_deadline(service: Build, held_out: list[Row]) -> None:
    run = service(
        {"evaluation.deadline_s": 0.05, "schedule.steps": 3, "simulation.tokens_per_s": 20.0},
        evaluations={"held": held_out},
    )
    run_simulated(run.run())
    assert run.lines[-1]["eval_held_failed"] > 0
    run.check_lines()


def test_a_pause_of_hours_costs_the_round_under_way_no_answer(service: Build, held_out: list[Row]) -> None:
    run = service(
        {"evaluation.deadline_s": 60, "evaluation.every": 100, "schedule.steps": 40},
        evaluations={"held": held_out * 10},
        evaluation_share=0.5,
    )

    async def scenario() -> None:
        await run.start()
        await run.until(lambda: run.orchestrator._evaluator._rounds)
        await run.orchestrator.control.pause()
        await asyncio.sleep(3600)
        assert (await run.queue.counts("held")).queued > 0, "it is under way"
        await run.orchestrator.control.resume()
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert versions(run) == [0, 40]
    assert all(line.get("eval_held_failed", 0) == 0 for line in run.lines)


def test_an_evaluation_that_a_crash_cut_off_is_made_again(service: Build, held_out: list[Row]) -> None:
    run = service(
        {"evaluation.every": 100, "schedule.steps": 6, "checkpoint.every": 2, "simulation.tokens_per_s": 20.0},
        evaluations={"held": held_out},
    )

    async def scenario() -> None:
        await run.start()
        await run.steps(1)
        await run.crash(actors=True)
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    assert versions(run)[-1] == 6
    assert len(versions(run)) == 2


def test_a_set_that_is_larger_than_its_lane_is_asked_whole(held_out: list[Row]) -> None:
    clock, rows = LoopClock(), held_out * (MOST_LIVE // 10)
    queue = MemoryQueue(QueueSettings(), MOST_LIVE, clock)
    evaluator = Evaluator(queue, {"held": rows}, config.Evaluation(), clock, AsyncMock(), last_step=1)

    async def scenario() -> None:
        await queue.claim(1)
        await evaluator.begin(Version(1, 0))
        while not evaluator.idle:
            for lease in await queue.lease("actor-0", 3000, "held", 0):
                await queue.commit(lease, Failure(prompt=lease.prompt, cause="attempts", detail=""))
            await evaluator.collect("", paused=False)

    run_simulated(scenario())
    assert evaluator.results()["eval_held_failed"] == len(rows) == 2 * MOST_LIVE
