"""The output of a run, also without data and without a terminal."""

from __future__ import annotations

import asyncio
import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olmorl.config import build
from olmorl.deploy.processes.log_files import logged
from olmorl.deploy.view import live_view
from olmorl.deploy.view.dashboard import Dashboard
from olmorl.deploy.view.live_view import LiveView, Status, Terminal, summary
from olmorl.deploy.view.start_phases import phases, start_of_an_engine
from olmorl.deploy.view.tables import show_status
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict
from olmorl.messages import ActorStatus, Owner, Stage, Wait

COUNTS = ("drawn", "trained", "zero_gradient", "stale", "failed")
NUMBERS = (
    *("reward_mean", "batch_reward_mean", "completion_tokens_mean", "actor_tokens_per_s", "useful_tokens_per_s"),
    *("lag_mean", "lag_max", "learner_step_s", "learner_wait_s", "weight_stall_s_mean"),
)


def line(step: int, accuracy: float | None) -> dict[str, Any]:
    totals = [f"groups_{name}_total" for name in COUNTS[1:]]
    counts = dict.fromkeys((*totals, "prompts_drawn_total", "tokens_generated_total", "tokens_trained_total"), step)
    return {
        "step": step,
        "wall_s": 10.0 * step,
        **dict.fromkeys(NUMBERS, 0.5),
        **counts,
        "groups_in_flight": 3,
        "eval_math_accuracy": accuracy,
    }


def test_an_unanswered_evaluation_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    output = StringIO()
    console = Console(file=output, width=200)
    lines = [line(1, 0.25), line(2, None)]
    LiveView("a run", console).show(Status(2, 9, lines=lines))
    console.print(summary(lines, tmp_path, 3.0))
    first, second, *_ = output.getvalue().splitlines()
    assert "math_accuracy 0.250" in first and "math_accuracy unanswered" in second


def test_an_accuracy_is_printed_with_the_versions_that_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"eval_math_version": 0, "eval_math_version_oldest": 0, "eval_math_version_newest": 6, "incarnation": 1}
    lines = [line(1, 0.25) | told, line(2, 0.5) | {"eval_math_version_oldest": 9, "eval_math_version_newest": 9}]
    output = StringIO()
    console = Console(file=output, width=200)
    LiveView("a run", console).show(Status(2, 9, lines=lines))
    console.print(summary(lines, tmp_path, 3.0))
    first, second, *table = output.getvalue().splitlines()
    assert "math_accuracy 0.250 (v0-6)" in first and "math_accuracy 0.500 (v9)" in second
    (row,) = (text for text in table if "eval_math_accuracy" in text)
    assert "0.250 (v0-6)" in row and "0.500 (v9)" in row
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines[:1]))
    show_status(tmp_path, None, "no launcher", as_json=False)
    assert "eval_math_accuracy: 0.250 (v0-6)" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["/dev/full", "a closed pipe"])
def test_a_run_does_not_end_because_nobody_can_read_it(output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(os.open(output, os.O_WRONLY) if output == "/dev/full" else writer, "w")
    view = LiveView("a run", Terminal(file=file, width=200))
    for step in (1, 2):
        view.say(f"news {step}")
        view.show(Status(step, 9, lines=[line(step, 0.5)]))


def test_news_are_in_the_launchers_log_and_steps_are_not(tmp_path: Path) -> None:
    view = LiveView("a run", Console(file=StringIO()))
    with logged(tmp_path, "launcher"):
        view.say("actor-0 died: it starts again now")
        view.show(Status(1, 9, lines=[line(1, 0.5)]))
    view.say("later")
    (found,) = (tmp_path / "logs" / "launcher.log").read_text().splitlines()
    assert found.endswith("INFO olmorl.deploy.view.live_view: actor-0 died: it starts again now")


async def test_a_wait_for_places_is_said_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SAY_AFTER_S", 0.01)
    output = StringIO()
    view = LiveView("a run", Console(file=output, width=200))
    with view.placing(Owner.LEARNER, 1800):
        pass
    await asyncio.sleep(0.05)
    assert output.getvalue() == ""
    with view.placing("20 engine(s)", 1800):
        await asyncio.sleep(0.05)
    assert output.getvalue().startswith("waiting for Ray to have room for 20 engine(s), up to 1800 s")


def test_a_full_disk_below_the_launchers_log_shows_nothing_on_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher.log").symlink_to("/dev/full")
    with logged(tmp_path, "launcher"):
        LiveView("a run", Console(file=StringIO())).say("waiting for room on the disk")
    assert capfd.readouterr().err == ""


LOADING = Wait("the question", Owner.LEARNER, 12.4, 3600.0, stage=Stage.ASKING)
WAITING = Wait("the batch", Owner.ORCHESTRATOR, 3.0, 3600.0, stage=Stage.BATCH)
TRAINING = Wait("the report", Owner.LEARNER, 1.0, 3600.0, stage=Stage.TRAINING)


def actor(state: str, running: int = 0) -> ActorStatus:
    return ActorStatus(name="actor-0", at=0.0, state=state, running=running)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(0, 9), ["learner: loading the model", "engines: starting their processes"]),
        (
            Status(0, 9, waits=[LOADING], actors=[actor("starting")]),
            ["learner: loading the model, for 12 s", "engines: loading the model"],
        ),
        (
            Status(0, 9, waits=[WAITING], actors=[actor("run", 8), actor("starting"), actor("starting")], results=2),
            [
                "learner: ready, waiting for the first groups, for 3 s",
                "engines: loading the model, 2 of 3",
                "engines: generating, 8 sequences now, 2 groups are scored",
            ],
        ),
        (
            Status(0, 9, waits=[TRAINING], actors=[actor("run", 64)], results=12),
            [
                "learner: training its first step, for 1 s",
                "engines: generating, 64 sequences now, 12 groups are scored",
            ],
        ),
    ],
)
def test_what_the_start_is_doing_is_seen(status: Status, said: list[str]) -> None:
    assert [str(phase) for phase in phases(status.waits, status.actors, status.results, "loading the model")] == said
    output = StringIO()
    console = Console(file=output, width=200)
    shown = LiveView("a run", console, engine_start="loading the model")
    shown.show(status)
    console.file = output = StringIO()
    console.print(Dashboard(shown.latest))
    assert all(phase in output.getvalue() for phase in said)
    shown.show(Status(1, 9, lines=[line(1, None)]))
    shown.show(status)
    console.file = output = StringIO()
    console.print(Dashboard(shown.latest))
    assert not any(phase in output.getvalue() for phase in said), "the first step is done"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({}, "loading the model and compiling it"),
        ({"actors": {"enforce_eager": True}}, "loading the model"),
        ({"run": {"mode": "simulated"}}, "starting"),
    ],
)
def test_an_engine_that_compiles_is_said_to(tree: dict[str, Any], said: str) -> None:
    assert start_of_an_engine(build(tree)) == said


def test_without_a_terminal_each_phase_of_the_start_is_a_line() -> None:
    output = StringIO()
    view = LiveView("a run", Console(file=output, width=200), engine_start="loading the model")
    view.doing("starting Ray")
    for status in (
        Status(0, 9, waits=[LOADING], actors=[actor("starting")]),
        Status(0, 9, waits=[LOADING._replace(waited_s=20.0)], actors=[actor("starting")]),
        Status(0, 9, waits=[WAITING], actors=[actor("run")]),
        Status(1, 9, lines=[line(1, 0.5)], waits=[TRAINING], actors=[actor("run")]),
        Status(2, 9, lines=[line(2, 0.5)], waits=[LOADING], actors=[actor("starting")]),
    ):
        view.show(status)
    *said, first, second = output.getvalue().splitlines()
    assert said == [
        "starting Ray",
        "learner: loading the model",
        "engines: loading the model",
        "learner: ready, waiting for the first groups",
        "engines: generating",
    ]
    assert first.startswith("step    1/9") and second.startswith("step    2/9")


def limited(limit: Bottleneck, sure: float = 0.9) -> RunVerdict:
    return RunVerdict(limit, sure, "the learner waits 61% of the time", "balanced at 6 actor nodes", 6.0)


def test_without_a_terminal_a_new_limit_is_a_line() -> None:
    output = StringIO()
    view = LiveView("a run", Console(file=output, width=200))
    for step, found in enumerate(
        [
            None,
            limited(Bottleneck.ACTORS),
            limited(Bottleneck.ACTORS, 0.8),
            limited(Bottleneck.QUEUE, 0.3),
            limited(Bottleneck.LEARNER),
        ],
        1,
    ):
        view.show(Status(step, 9, lines=[line(step, 0.5)], verdict=found))
    said = [text for text in output.getvalue().splitlines() if not text.startswith("step ")]
    assert said == [
        "the actors limit this run (90% sure): the learner waits 61% of the time; balanced at 6 actor nodes",
        "the learner limits this run (90% sure): the learner waits 61% of the time; balanced at 6 actor nodes",
    ]


async def test_on_a_terminal_the_view_says_what_is_done_before_there_is_a_status() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True)
    with LiveView("a run", console) as view:
        view.doing("reading the data")
        view._live.refresh()  # type: ignore[union-attr]
    assert "reading the data" in console.file.getvalue()  # type: ignore[attr-defined]


async def test_what_was_said_on_a_full_screen_is_printed_after_it() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True)
    with LiveView("a run", console) as view:
        view.say("actor-0 died: it starts again now")
        view.show(Status(1, 9, lines=[line(1, 0.5)]))
        assert view.latest.faults[-1].endswith(" actor-0 died: it starts again now")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.rstrip().endswith("actor-0 died: it starts again now")
    view.close()
    assert console.file.getvalue() == shown, "closing twice prints nothing"  # type: ignore[attr-defined]
