"""What the recipe decides about the parts of an actor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.actors.episodes.runner import Play
from olmorl.clock import LoopClock, run_simulated
from olmorl.deploy import wiring
from olmorl.errors import ResourceError
from olmorl.messages import Prompt, Version
from olmorl.ports import Row
from tests.deploy.folders import bare_model

Parts = Callable[..., dict[str, Any]]
PROMPT = Prompt(
    draw_id=5,
    row="data.jsonl:1",
    messages="?",
    token_ids=np.arange(3, dtype=np.int32),
    datasets=("math",),
    ground_truths=("1",),
    group_size=4,
    min_version=Version(1, 0),
)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parts:
    """The parts that an actor of a recipe is made of."""
    monkeypatch.setattr("olmorl.actors.loop.Actor", lambda **given: given)
    run = {"directory": tmp_path, "name": "run", "seed": 7}

    def build(name: str, mode: str, max_lag: int) -> dict[str, Any]:
        tree = {"run": {**run, "mode": mode}, "model": {"path": "none"}, "schedule": {"max_lag": max_lag}}
        made: Any = wiring.actor(config.build(tree), name, None, None, "")  # type: ignore[arg-type]
        found: dict[str, Any] = made
        return found

    return build


@pytest.mark.parametrize(("mode", "max_lag", "seeded"), [("real", 0, True), ("real", 4, False), ("simulated", 4, True)])
def test_answers_have_seeds_only_where_a_run_could_repeat_them(
    parts: Parts, mode: str, max_lag: int, seeded: bool
) -> None:
    sampling = parts("actor-0", mode, max_lag)["sample"](PROMPT, 0)
    assert (sampling.seed is not None) == seeded


@pytest.mark.parametrize("player", ["environment", "agent"])
def test_a_simulated_run_plays_the_turns_and_the_tools_of_its_recipe(tmp_path: Path, player: str) -> None:
    async def scenario() -> tuple[int, float]:
        tree = {
            "run": {"directory": tmp_path, "name": "run", "mode": "simulated"},
            "episodes": {player: "a:B"},
            "simulation": {"turns": 3, "tool_s": 20.0},
        }
        play = wiring.play(config.build(tree))
        assert isinstance(play, Play)
        environment, clock = play.environments.open(), LoopClock()
        began, turns = clock.now(), 1
        while not (await environment.step({})).done:
            turns += 1
        return turns, clock.now() - began

    assert run_simulated(scenario()) == (3, 60.0)


def test_the_learner_keeps_weights_for_the_lags_that_the_recipe_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("olmorl.learner.trainer.deepspeed_trainer.DeepSpeedTrainer", lambda *_, **given: given)
    run = {"directory": tmp_path, "name": "run", "mode": "real"}
    model = {"path": str(bare_model(tmp_path / "model"))}
    made: Any = wiring.trainer(config.build({"run": run, "model": model, "schedule": {"max_lag": 3}}), 0, "")
    assert made["max_lag"] == 3


@pytest.mark.parametrize(
    ("datasets", "verifiers", "line"),
    [
        ([("math",)], {"functions": ["rewards.py:plain"]}, "rewards: math, plain x1"),
        ([()], {"functions": ["rewards.py:plain*0.5", "rewards.py:plain"]}, "rewards: plain x0.5, plain#2 x1"),
        ([("math", "format")], {"weights": {"format": 0.1}}, "rewards: math + format x0.1"),
        (
            [("math",), ("code",), ("code",), ()],
            {"functions": ["rewards.py:plain"], "weights": {"plain": 2.0}, "combine": "mean"},
            "rewards: code (2 rows), math (1 rows), no verifier (1 rows), plain x2; combined by mean",
        ),
    ],
)
def test_one_line_says_what_scores_the_rows(
    datasets: list[tuple[str, ...]], verifiers: dict[str, Any], line: str
) -> None:
    rows = [Row("data.jsonl:1", "?", np.zeros(1, np.int32), names, ("",) * len(names), {}, False) for names in datasets]
    assert wiring.scored_by(rows, config.Verifiers(**verifiers)) == line


def test_one_line_says_who_teaches_the_rows() -> None:
    teachers = {"math": {"url": "http://h", "sources": ["a.jsonl"]}}
    rows = [Row(f"{name}.jsonl:1", "?", np.zeros(1, np.int32), (), (), {}, False) for name in "aab"]
    mixed = config.Distillation.model_validate({"teachers": teachers, "with_rewards": True})
    assert wiring.taught_by(rows, mixed) == "teachers: math (2 rows), nobody (1 rows), with rewards"
    assert wiring.scored_by(rows, config.Verifiers()) == "rewards: none"


def test_a_run_says_at_its_start_what_scores_its_rows(tmp_path: Path) -> None:
    rows = tmp_path / "gsm8k.jsonl"
    row = {"data_source": "openai/gsm8k", "prompt": "1+1?", "reward_model": {"style": "rule", "ground_truth": "2"}}
    rows.write_text(f"{json.dumps(row)}\n" * 4)
    (tmp_path / "own.py").write_text("def plain(data_source, solution_str, ground_truth, extra_info=None): return 1.0")
    tree = {
        "model": {"path": str(bare_model(tmp_path / "model"))},
        "data": {"train": [str(rows)]},
        "schedule": {"prompts_per_step": 4},
    }
    functions = [f"{tmp_path / 'own.py'}:plain"]
    for verifiers, line in (({}, "rewards: math"), ({"functions": functions}, "rewards: plain x1")):
        _, _, notes = wiring.prompts(config.build({**tree, "verifiers": verifiers}))
        assert notes[-1] == line


@pytest.mark.parametrize("fault", [None, ResourceError("the disk is full")])
async def test_a_rank_that_failed_does_not_wait_for_the_others_to_leave_the_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Exception | None
) -> None:
    class Policy:
        closed = False

        def close(self) -> None:
            self.closed = True

    async def run(*_: Any) -> str:
        if fault:
            raise fault
        return "stop"

    policy = Policy()
    monkeypatch.setattr(wiring, "trainer", lambda *_: policy)
    monkeypatch.setattr("olmorl.learner.loop.run", run)
    settings = config.build({"run": {"directory": tmp_path, "name": "run"}, "model": {"path": "none"}})
    learning = wiring.learn(settings, 0, "127.0.0.1:1", None)  # type: ignore[arg-type]
    if fault:
        with pytest.raises(ResourceError):
            await learning
    else:
        assert await learning == "stop"
    assert policy.closed == (fault is None)


def test_engines_sample_apart(parts: Parts) -> None:
    found = {parts(name, "real", 4)["engine"]._start.seed for name in ("actor-0", "actor-0.2", "actor-1")}
    assert len(found) == 3
