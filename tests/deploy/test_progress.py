"""What a run says: also when there is nothing to say, and nobody who could read it."""

from __future__ import annotations

import asyncio
import os
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from rich.console import Console

from olmorl.deploy import progress
from olmorl.deploy.assembler_host import AssemblerHost
from olmorl.deploy.figure import draw
from olmorl.deploy.progress import Progress, Status, Terminal, summary
from olmorl.deploy.rundir import logged

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
        **dict.fromkeys(NUMBERS, 0.5),
        **counts,
        "groups_in_flight": 3,
        "eval_math_accuracy": accuracy,
    }


def test_an_evaluation_that_nobody_answered_is_said_and_ends_nothing(tmp_path: Path) -> None:
    output = StringIO()
    console = Console(file=output, width=200)
    lines = [line(1, 0.25), line(2, None)]
    Progress("a run", console).show(Status(2, 9, lines=lines))
    console.print(summary(lines, tmp_path, 3.0))
    first, second, *_ = output.getvalue().splitlines()
    assert "math_accuracy 0.250" in first and "math_accuracy unanswered" in second
    draw([line(1, None)], tmp_path / "reward.png")


@pytest.mark.parametrize("output", ["/dev/full", "a closed pipe"])
def test_a_run_does_not_end_because_nobody_can_read_it(output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(os.open(output, os.O_WRONLY) if output == "/dev/full" else writer, "w")
    view = Progress("a run", Terminal(file=file, width=200))
    for step in (1, 2):
        view.say(f"news {step}")
        view.show(Status(step, 9, lines=[line(step, 0.5)]))


def test_news_are_in_the_launchers_log_and_steps_are_not(tmp_path: Path) -> None:
    view = Progress("a run", Console(file=StringIO()))
    with logged(tmp_path, "launcher"):
        view.say("actor-0 died: it starts again now")
        view.show(Status(1, 9, lines=[line(1, 0.5)]))
    view.say("later")
    (found,) = (tmp_path / "logs" / "launcher.log").read_text().splitlines()
    assert found.endswith("INFO olmorl.deploy.progress: actor-0 died: it starts again now")


async def test_a_wait_for_places_is_said_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_AFTER_S", 0.01)
    output = StringIO()
    view = Progress("a run", Console(file=output, width=200))
    with view.placing("the learner", 1800):
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
        Progress("a run", Console(file=StringIO())).say("waiting for room on the disk")
    assert capfd.readouterr().err == ""


def test_what_is_added_to_a_line_is_no_line_of_its_own() -> None:
    host = object.__new__(AssemblerHost)
    host._lines, host.telemetry = [], Mock()
    for fields in ({"step": 3, "reward_mean": 0.5}, {"eval_held_accuracy": 0.25}):
        host._observe(fields)
    assert [line["step"] for line in host._lines] == [3]
    assert host.telemetry.record.call_args == call({"eval_held_accuracy": 0.25})
