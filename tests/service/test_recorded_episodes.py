"""The rollouts of a run of episodes, played again by `olmorl-verify`, get the rewards and exits that they had."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from olmorl.actors.episodes.fake_environments import FakeEnvironment, FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.fake_engine import FakeScorer
from olmorl.clock import run_simulated
from olmorl.deploy.verify.cli import main
from olmorl.messages import ENVIRONMENT, Completion, Prompt, Verdict
from olmorl.ports import EnvironmentStep
from tests.service.test_episodes import SETTINGS, episode_rows

Build = Callable[..., Any]
WORLD = """
class World:
    def reset(self, prompt, **row):
        self.words, self.right = len(str(prompt)), []
    def step(self, reply):
        self.right.append(reply["content"] == "right")
        return None if len(self.right) == 3 or self.right[-2:] == [True, True] else "go on"
    def reward(self):
        return sum(self.right) / self.words
"""


class InProcess(FakeEnvironments):
    """Plays the world in this process, because simulated time waits for no other."""

    def __init__(self, world: Callable[[], Any]) -> None:
        super().__init__(reply_s=0.3, failures=3)
        self.world = world

    def open(self) -> FakeEnvironment:
        self._failures -= 1
        self.open_now += 1
        return _InProcess(self, 99, 0.3, fails=self._failures >= 0)


class _InProcess(FakeEnvironment):
    _owner: InProcess

    async def reset(self, prompt: Prompt, index: int) -> None:
        self._world = self._owner.world()
        self._world.reset(prompt=prompt.messages)

    async def step(self, reply: dict[str, Any]) -> EnvironmentStep:
        await super().step(reply)
        said = self._world.step(reply)
        return EnvironmentStep([{"role": "user", "content": said}] if said else [], done=said is None)

    async def reward(self, episode: Completion) -> dict[str, Verdict]:
        return {ENVIRONMENT: Verdict(reward=self._world.reward(), method=ENVIRONMENT)}


class OfTheEnvironment(FakeScorer):
    """The reward is that of the environment."""

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        return {}

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        return tuple(replace(one, reward=one.verdicts[ENVIRONMENT].reward) for one in completions)


def test_rollouts_that_are_played_again_get_their_rewards(service: Build, tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    exec(WORLD, made)
    rows = [row._replace(datasets=(), ground_truths=()) for row in episode_rows()]
    run = service(
        {**SETTINGS, "schedule.steps": 2},
        rows=rows,
        play=lambda: Play(InProcess(made["World"]), FakeRenderer(), 3, 100, 400, 2),
        scorer=OfTheEnvironment,
        num_actors=1,
    )
    run_simulated(run.run())
    groups = [record for record in run.rollouts if record["completions"]][:20]
    world, source, output = tmp_path / "world.py", tmp_path / "rollouts.jsonl", tmp_path / "out.jsonl"
    world.write_text(WORLD)
    source.write_text("".join(json.dumps(group) + "\n" for group in groups))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[episodes]\nenvironment = "{world}:World"\nmax_turns = 3\n')
    assert main([str(source), "-o", str(output), "--config", str(recipe), "--workers", "2"]) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    episodes = [(group["prompt_id"], one) for group in groups for one in group["completions"]]
    expected = [(draw, one["reward"], one["exit"], len(one["turns"])) for draw, one in episodes]
    assert [(line["prompt_id"], line["reward"], line["exit"], line["num_turns"]) for line in lines] == expected
    assert {exit_ for _, _, exit_, _ in expected} >= {"done", "too_long"}
    cut = {one["turns"][-1]["finish_reason"] for _, one in episodes if one["exit"] == "too_long"}
    assert len({reward for _, reward, _, _ in expected}) > 2 and cut
