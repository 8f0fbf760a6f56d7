"""Episodes with tools in simulated time: the slots of waiting ones go to others, for a larger lag."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from olmorl import config
from olmorl.deploy.plan.cli import main
from olmorl.deploy.plan.simulated_service import SimulatedService

TURNS = 4
WARM_UP = 10


class Found(NamedTuple):
    used: float
    """Share of the engine's slots that hold a sequence."""
    waiting: float
    """Share of the episodes under way that wait for a tool."""


def simulated(recipe: Callable[..., Any], max_lag: int, turns: int, tool_s: float) -> Found:
    """Answers of 160 tokens in all, in so many turns."""
    settings = recipe(
        run__name=f"lag{max_lag}-{turns}",
        schedule__max_lag=max_lag,
        simulation__turns=turns,
        simulation__tool_s=tool_s,
        simulation__mean_tokens=160.0 / turns,
        simulation__train_tokens_per_s=4000.0,
        episodes__environment="fake:fake",
        episodes__max_turns=turns,
        episodes__max_tokens=turns * 403,
    )
    service = SimulatedService(settings, 1)
    service.run(40)
    seconds = service.lines[-1]["wall_s"] - service.lines[WARM_UP]["wall_s"]
    running = (service.slot_s[-1] - service.slot_s[WARM_UP]) / seconds
    lines = service.lines[WARM_UP + 1 :]
    waiting = sum(line["sequences_awaiting_environment"] for line in lines) / len(lines)
    return Found(running / settings.actors.max_running, waiting / (waiting + running))


def test_tools_of_half_the_time_need_twice_the_lag_of_single_answers(recipe: Callable[..., Any]) -> None:
    assert simulated(recipe, 1, 1, 0.0).used < 0.95 <= simulated(recipe, 2, 1, 0.0).used
    busy = simulated(recipe, 2 * 2, TURNS, 3.3)
    assert busy.waiting == pytest.approx(0.5, abs=0.05)
    assert busy.used >= 0.95, "2 / (1 - 0.5) versions"


def test_a_plan_knows_turns_and_tools(
    recipe: Callable[..., Any], finished: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(config.to_toml(recipe()))
    known = [str(tmp_path / "recipe.toml"), "--no-sweep", "--steps", "4", "--mean-tokens", "40"]

    def step_s(*words: str) -> float:
        assert main([*known, *words, "--json", str(tmp_path / "plan.json")]) == 0, capsys.readouterr()
        (one,) = json.loads((tmp_path / "plan.json").read_text())["predictions"]
        return float(one["step_s"])

    one_turn = step_s()
    assert step_s("--turns", "3") > 1.5 * one_turn
    assert step_s("--turns", "3", "--tool-s", "20") > step_s("--turns", "3")
    assert main(["--from", str(finished(run__name="done")), "--turns", "2", "--no-sweep"]) == 2
    assert "recorded answers are whole episodes; give --mean-tokens" in capsys.readouterr().err
