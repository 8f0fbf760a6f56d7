"""Exports every N steps and the best checkpoint, also with crashes at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from olmorl import config
from olmorl.clock import run_simulated
from olmorl.deploy.evaluation.models import choose
from olmorl.errors import ConfigError, DataError, ResourceError
from olmorl.learner.orchestrator import evaluation
from olmorl.learner.storage import best_checkpoint, checkpoint_dir
from olmorl.run_dir import RunFiles
from tests.service.conftest import rows

Build = Callable[..., Any]
METRIC = "eval_held_accuracy"
CURVE = {0: 0.9, 4: 0.2, 8: 0.6, 12: 0.8, 16: 0.3, 20: 0.8, 24: 0.5, 26: 0.1}
"""The accuracy of each version that is evaluated."""
BEST = {
    "schedule.steps": 26,
    "checkpoint.every": 5,
    "checkpoint.keep": 2,
    "checkpoint.best": METRIC,
    "evaluation.every": 4,
    "evaluation.data": ["held=held.jsonl"],
}


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the measured accuracy by that of `CURVE`."""
    fields = evaluation.Round.fields

    def known(self: Any, name: str) -> dict[str, float | None]:
        return fields(self, name) | {f"eval_{name}_accuracy": CURVE.get(self.version.number, 0.05)}

    monkeypatch.setattr(evaluation.Round, "fields", known)


class Exporter:
    """Takes some seconds for an export, and leaves half a folder of another name when it is killed."""

    def __init__(self, seconds: float = 3.0) -> None:
        self.run: Any = None
        self.seconds = seconds
        self.made: list[int] = []
        self.fails: set[int] = set()

    async def __call__(self, step: int) -> None:
        folder = RunFiles(self.run.run_dir).export_of(step)
        partial = folder.with_name(f".{folder.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        await asyncio.sleep(self.seconds)
        assert step in checkpoint_dir.steps(self.run.run_dir / "checkpoints"), "its checkpoint is still there"
        if step in self.fails:
            raise ResourceError("no room")
        partial.rename(folder)
        self.made.append(step)


def exports(run: Any) -> list[int]:
    return sorted(int(path.name[5:]) for path in RunFiles(run.run_dir).exports.glob("step_*"))


def test_an_export_comes_from_a_checkpoint_that_stays_until_then(service: Build) -> None:
    exporter = Exporter(seconds=8.0)
    overrides = {"schedule.steps": 24, "checkpoint.every": 5, "checkpoint.keep": 1, "checkpoint.export_every": 4}
    run = service(overrides, export=exporter)
    exporter.run = run
    exporter.fails = {8}
    run_simulated(run.run())
    assert exports(run) == exporter.made == [4, 12, 16, 20, 24], "the run goes on without the one that failed"
    assert checkpoint_dir.steps(run.run_dir / "checkpoints") == [24], "those that waited are removed at the end"
    run.check_lines()


@pytest.mark.parametrize("point", range(4))
def test_every_export_is_there_after_crashes(service: Build, point: int) -> None:
    random, exporter = Random(point), Exporter(seconds=6.0)
    overrides = {"schedule.steps": 20, "checkpoint.every": 5, "checkpoint.keep": 2, "checkpoint.export_every": 4}
    run = service(overrides, export=exporter)
    exporter.run = run

    async def scenario() -> None:
        await run.start()
        for _ in range(3):
            if await run.ended_within(random.uniform(1.0, 14.0)):
                break
            await run.crash(actors=False)
            await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    assert exports(run) == [4, 8, 12, 16, 20]
    assert sorted(exporter.made) == exports(run), "none is made twice"


@pytest.mark.usefixtures("curve")
def test_the_checkpoint_with_the_highest_value_stays(service: Build) -> None:
    run = service(BEST, evaluations={"held": rows(6, "held")})
    run_simulated(run.run())
    checkpoints = run.run_dir / "checkpoints"
    assert checkpoint_dir.steps(checkpoints) == [12, 25, 26], "the first of two equal ones"
    assert best_checkpoint.best_step(checkpoints) == 12
    RunFiles(run.run_dir).config.touch()
    assert choose(f"{run.run_dir}@best").step == 12
    run.check_lines()


@pytest.mark.usefixtures("curve")
@pytest.mark.parametrize("point", range(4))
def test_the_best_checkpoint_is_never_lost_by_a_crash(service: Build, point: int) -> None:
    random = Random(point)
    run = service(BEST, evaluations={"held": rows(6, "held")})
    checkpoints = run.run_dir / "checkpoints"

    async def scenario() -> None:
        await run.start()
        for _ in range(4):
            if await run.ended_within(random.uniform(1.0, 12.0)):
                break
            await run.crash(actors=bool(point % 2))
            await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    evaluated = {line["eval_held_version"]: line[METRIC] for line in run.lines if METRIC in line}
    candidates = {
        version: value
        for version, value in evaluated.items()
        if version > 0 and 0 in (version % 4, version % 5, version % 26)
    }
    best = min(version for version, value in candidates.items() if value == max(candidates.values()))
    assert best_checkpoint.best_step(checkpoints) == best and best in checkpoint_dir.steps(checkpoints)


@pytest.mark.usefixtures("curve")
def test_going_back_forgets_a_later_best_and_its_export(service: Build) -> None:
    exporter = Exporter(seconds=0.5)
    run = service({**BEST, "checkpoint.export_every": 4}, evaluations={"held": rows(6, "held")}, export=exporter)
    exporter.run = run
    checkpoints = run.run_dir / "checkpoints"

    async def scenario() -> None:
        await run.start()
        await run.until(lambda: (checkpoints / "best.json").exists() and best_checkpoint.best_step(checkpoints) == 12)
        await run.until(lambda: 12 in exports(run))
        await run.crash(actors=False)
        go_back = min(checkpoint_dir.steps(checkpoints))
        await run.start(resume=True, from_step=go_back)
        assert max(exports(run), default=0) <= go_back < 12
        with pytest.raises(DataError, match=r"checkpoint\.best"):
            best_checkpoint.best_step(checkpoints)
        await run.finish()

    run_simulated(scenario())
    assert best_checkpoint.best_step(checkpoints) == 12


def test_a_recipe_whose_best_checkpoint_cannot_be_found_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"name evaluation\.data"):
        config.build({"checkpoint": {"best": METRIC}})
    tree = {"evaluation": {"data": ["a.jsonl"], "every": 5}, "checkpoint": {"best": METRIC}, "schedule": {"max_lag": 3}}
    with pytest.raises(ConfigError, match=r"evaluation\.every = 5 to a multiple"):
        config.build(tree | {"weights": {"publish_every": 2}})


def test_a_stop_does_not_wait_for_the_last_exports_and_a_resume_makes_them(service: Build) -> None:
    exporter = Exporter(seconds=500.0)
    run = service({"schedule.steps": 8, "checkpoint.every": 8, "checkpoint.export_every": 8}, export=exporter)
    exporter.run = run

    async def scenario() -> float:
        await run.start()
        await run.until(lambda: 8 in checkpoint_dir.steps(run.run_dir / "checkpoints"))
        assert not await run.ended_within(100.0), "the run waits for its last export"
        began = run.clock.now()
        run.orchestrator.control.stop()
        await run.finish()
        ended = run.clock.now()
        assert exports(run) == []
        exporter.seconds = 5.0
        await run.start(resume=True)
        await run.finish()
        return float(ended - began)

    assert run_simulated(scenario()) < 5.0
    assert exports(run) == [8]
