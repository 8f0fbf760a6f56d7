"""Keys that change while the run goes on: at a step boundary, through crashes, and in the recipes of later starts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from olmorl import config
from olmorl.clock import run_simulated
from olmorl.deploy.control import cli
from olmorl.deploy.preflight.local_checks import check_resume
from olmorl.deploy.supervision import recipe_history
from olmorl.deploy.view.prompt_story import prompt_story
from olmorl.errors import ConfigError
from olmorl.learner.orchestrator.changes import CHANGEABLE, settings_at
from olmorl.learner.storage import checkpoint_dir, durable_files, ledger
from olmorl.learner.storage.ledger_state import Changed
from olmorl.run_dir import RunFiles
from tests.service.conftest import rows

Build = Callable[..., Any]
RATE = "learner.learning_rate"
WHO = "anna@host"


def rates(run: Any) -> list[float]:
    return [line["lr"] for line in run.lines]


def changes(run: Any) -> list[Changed]:
    return [event for event in ledger.history(run.run_dir) if isinstance(event, Changed)]


def keep_recipe(run: Any) -> None:
    RunFiles(run.run_dir).config.write_text(config.to_toml(recipe_history.spelled_out(run.settings)))


@pytest.mark.parametrize("point", range(6))
def test_a_change_counts_from_one_step_on_through_crashes(service: Build, point: int) -> None:
    random = Random(point)
    run = service({"schedule.steps": 24, "checkpoint.every": 5, "schedule.max_lag": random.choice([0, 1, 4])})

    async def scenario() -> list[Changed]:
        made = []
        await run.start()
        for rate, after in ((5e-7, 1), (2e-7, 9)):
            await run.steps(random.randint(after, after + 4))
            made.append(await run.orchestrator.draws.change(RATE, rate, WHO))
            if not await run.ended_within(random.uniform(0.0, 12.0)):
                await run.crash(actors=bool(point % 2))
                await run.start(resume=True)
        await run.finish()
        return made

    first, second = run_simulated(scenario())
    assert 1 < first.step < second.step <= 24
    assert (first.old, first.new, second.old, second.new, first.who) == (1e-6, 5e-7, 5e-7, 2e-7, WHO)
    wanted = [1e-6] * (first.step - 1) + [5e-7] * (second.step - first.step) + [2e-7] * (25 - second.step)
    assert rates(run) == wanted
    assert [one.new for one in changes(run)] == [5e-7, 2e-7] and all(one.at is not None for one in changes(run))
    run.check_lines()


def test_another_number_of_actors_is_in_the_ledger_and_changes_no_key(
    service: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    run = service({"schedule.steps": 12})

    async def scenario() -> None:
        await run.start()
        await run.steps(4)
        await run.orchestrator.draws.resized(1, 3, "actors.autoscale")
        await run.steps(8)
        await run.crash(actors=True)
        keep_recipe(run)
        assert check_resume(run.settings, change=False, from_step=None) == []
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    (change,) = changes(run)
    assert (change.key, change.old, change.new, change.who) == ("actors", 1, 3, "actors.autoscale")
    assert cli.main([str(run.run_dir), "set"]) == 0
    assert f"actors: 1 -> 3 from step {change.step} on, by actors.autoscale" in capsys.readouterr().out
    run.check_lines()


@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
def test_a_kill_while_a_change_is_written_leaves_all_of_it_or_nothing(
    service: Build, monkeypatch: pytest.MonkeyPatch, written: float
) -> None:
    run = service({"schedule.steps": 16})
    append = durable_files.append

    class Killed(BaseException):
        """Ends the write as SIGKILL does."""

    def die_in_the_middle(file: int, data: bytes) -> None:
        if b'"changed"' in data:
            append(file, data[: int(len(data) * written)])
            raise Killed
        append(file, data)

    async def scenario() -> None:
        await run.start()
        await run.steps(6)
        monkeypatch.setattr(durable_files, "append", die_in_the_middle)
        with pytest.raises(Killed):
            await run.orchestrator.draws.change(RATE, 5e-7, WHO)
        await run.crash(actors=False)
        monkeypatch.setattr(durable_files, "append", append)
        await run.start(resume=True)
        await run.finish()

    run_simulated(scenario())
    if written < 1.0:
        assert changes(run) == [] and rates(run) == [1e-6] * 16
    else:
        (change,) = changes(run)
        assert rates(run) == [1e-6] * (change.step - 1) + [5e-7] * (17 - change.step)
    run.check_lines()


def test_every_key_of_the_list_takes_effect(service: Build) -> None:
    overrides = {"schedule.steps": 24, "checkpoint.every": 4, "checkpoint.keep": 9, "schedule.max_lag": 4}
    run = service({**overrides, "evaluation.every": 20}, evaluations={"held": rows(6, "held")})

    async def scenario() -> dict[str, int]:
        await run.start()
        await run.steps(6)
        begin = {}
        values = {"checkpoint.every": 5, "checkpoint.keep": 2, "evaluation.every": 3, "schedule.depth": 0, RATE: 3e-7}
        assert values.keys() == CHANGEABLE.keys()
        for key, value in values.items():
            change = await run.orchestrator.draws.change(key, value, WHO)
            begin[key] = change.step
            assert await run.orchestrator.draws.change(key, value, WHO) is None, "it has this value already"
        await run.finish()
        return begin

    begin = run_simulated(scenario())
    assert begin["checkpoint.every"] <= 9
    assert checkpoint_dir.steps(run.run_dir / "checkpoints") == [20, 24]
    versions = [line["eval_held_version"] for line in run.lines if "eval_held_version" in line]
    assert versions[0] == 0 and len(versions) > 4, "the recipe's 20 would give 0, 20 and 24"
    assert max(line["lag_max"] for line in run.lines[:6]) > 1
    assert max(line["lag_max"] for line in run.lines[begin["schedule.depth"] + 5 :]) == 0
    run.check_lines()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sampling.temperature", 0.7, "actors read it .*--resume --change --sampling.temperature 0.7"),
        ("schedule.max_lag", 9, "schedule.depth can be changed up to it"),
        ("objective.eps_high", 0.3, "ranks read it at their start"),
        ("model.path", "x", "processes read it at their start"),
        ("learner.learning_rat", 1e-7, "unknown key; did you mean 'learner.learning_rate'"),
        (RATE, 2.0, "less than or equal to 1"),
        (RATE, "fast", "valid number"),
        ("schedule.depth", 3, "over schedule.max_lag = 2"),
        ("checkpoint.every", 0, "greater than or equal to 1"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_the_way_to_make_it(
    service: Build, key: str, value: object, message: str
) -> None:
    run = service({"schedule.steps": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(1)
        with pytest.raises(ConfigError, match=message):
            await run.orchestrator.draws.change(key, value, WHO)
        await run.finish()

    run_simulated(scenario())
    assert changes(run) == []


def test_a_change_after_the_last_batch_is_refused(service: Build) -> None:
    run = service({"schedule.steps": 4})

    async def scenario() -> None:
        await run.start()
        await run.steps(4)
        with pytest.raises(ConfigError, match="no step is left"):
            await run.orchestrator.draws.change(RATE, 5e-7, WHO)
        await run.finish()

    run_simulated(scenario())


def test_going_back_before_a_change_takes_it_back(service: Build) -> None:
    run = service({"schedule.steps": 16, "checkpoint.every": 4, "checkpoint.keep": 9})

    async def scenario() -> int:
        await run.start()
        await run.steps(6)
        change = await run.orchestrator.draws.change(RATE, 5e-7, WHO)
        await run.steps(13)
        await run.crash(actors=False)
        await run.start(resume=True, from_step=4)
        await run.finish()
        return change.step

    assert run_simulated(scenario()) > 6
    assert rates(run) == [1e-6] * 16 and changes(run) == []


def test_a_resume_explains_a_change_and_a_new_value_of_the_recipe_replaces_it(
    service: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    run = service({"schedule.steps": 20})
    recipe = run.settings
    with_rate = {rate: config.with_key(recipe, RATE, rate) for rate in (5e-7, 3e-7)}

    async def scenario() -> int:
        await run.start()
        await run.steps(6)
        change: Changed = await run.orchestrator.draws.change(RATE, 5e-7, WHO)
        await run.steps(9)
        await run.crash(actors=False)
        keep_recipe(run)
        assert check_resume(recipe, change=False, from_step=None) == [], "the recipe as it was"
        assert check_resume(with_rate[5e-7], change=False, from_step=None) == [], "the recipe with the change"
        with pytest.raises(ConfigError, match=rf"{RATE}: 1e-06 \(5e-07 since step {change.step}, .*\) -> 3e-07"):
            check_resume(with_rate[3e-7], change=False, from_step=None)
        run.settings = with_rate[3e-7]
        await run.start(resume=True)
        await run.finish()
        return change.step

    step = run_simulated(scenario())
    assert [(one.new, one.who) for one in changes(run)] == [(5e-7, WHO), (3e-7, "the recipe of a start")]
    begin = changes(run)[1].step
    assert begin == 9, "the checkpoint of step 8 is the newest"
    wanted = [1e-6] * (step - 1) + [5e-7] * (begin - step) + [3e-7] * (21 - begin)
    assert rates(run) == wanted
    state = checkpoint_dir.newest_state(RunFiles(run.run_dir))
    assert settings_at(recipe, state.changes, 20).learner.learning_rate == 1e-6, "its recipe is another one"

    keep_recipe(run)
    assert cli.main([str(run.run_dir), "set"]) == 0
    printed = capsys.readouterr().out
    assert f"{RATE}: 1e-06 -> 5e-07 from step {step} on, by {WHO}" in printed and "schedule.depth" in printed
    stories = [prompt_story(run.run_dir, record["prompt_id"]) for record in run.ledger]
    assert any(moment.what == "changed" and "5e-07" in moment.text for story in stories for moment in story)
