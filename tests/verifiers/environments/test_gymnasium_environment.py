"""Environments of Gymnasium as episodes: text, numbers, drawings; rewards and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmorl.config import Episodes, Verifiers
from olmorl.errors import ConfigError
from olmorl.messages import ENVIRONMENT
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from tests.verifiers.environments.test_forked_environments import episode, prompt

GUESS = '''
"""A number is to be guessed: a text environment as Gymnasium's guide makes and registers them."""

import gymnasium
from gymnasium.spaces import Box, Text

DIGITS = "0123456789"


class Guess(gymnasium.Env):
    def __init__(self, highest=9):
        self.observation_space = Text(80, charset=DIGITS + "abcdefghijklmnopqrstuvwxyz .")
        self.action_space = Text(2, charset=DIGITS)
        self.highest = highest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = (options or {}).get("wanted", int(self.np_random.integers(0, self.highest + 1)))
        return f"guess a number up to {self.highest}", {}

    def step(self, action):
        guess = int(action)
        if guess == self.wanted:
            return "right", 1.0, True, False, {}
        return "higher" if guess < self.wanted else "lower", -0.25, False, False, {}


gymnasium.register("olmorl/Guess-v0", entry_point=Guess, max_episode_steps=3)


def hard():
    return Guess(highest=90)


def of_pixels():
    made = Guess()
    made.observation_space = Box(0, 1, (2, 2))
    return made
'''


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that registers an environment, and has functions that make more."""
    (tmp_path / "guess_environment.py").write_text(GUESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "guess_environment"


async def played(name: str, *answers: str, **columns: Any) -> tuple[str, list[Any], float]:
    """What the policy reads first, the replies to its answers, and the reward."""
    environments = ForkedEnvironments(Episodes(environment=name), Verifiers(memory_mib=512))
    await environments.start()
    try:
        world = environments.open()
        opening = await world.reset(prompt(**columns), 0)
        steps = [await world.step(said(answer)) for answer in answers]
        reward = (await world.reward(episode()))[ENVIRONMENT].reward
        await world.close()
    finally:
        await environments.stop()
    assert opening is not None and reward is not None
    return opening[-1]["content"], steps, reward


async def test_an_answer_is_the_action_and_the_rewards_add_up(place: str) -> None:
    name = f"gymnasium:{place}:olmorl/Guess-v0"
    opening, steps, reward = await played(name, "<think>5?</think>\n5", "seven", "7", options={"wanted": 7})
    assert opening == "?\nguess a number up to 9"
    higher, wrong, last = steps
    assert higher.messages == [{"role": "user", "content": "higher"}]
    assert wrong.messages[0]["content"].startswith("Error: this is no action of Text(1, 2,")
    assert (last.messages, last.done, last.truncated) == ([], True, False)
    assert reward == 0.75


async def test_its_own_limit_of_steps_is_no_end_that_the_policy_reached(place: str) -> None:
    _, steps, reward = await played(f"gymnasium:{place}:olmorl/Guess-v0", "1", "1", "1", options={"wanted": 7})
    assert [(step.done, step.truncated) for step in steps] == [(False, False), (False, False), (True, True)]
    assert reward == -0.75
    _, steps, _ = await played(f"gymnasium:{place}:olmorl/Guess-v0", "1", "1", "7", options={"wanted": 7})
    assert (steps[-1].done, steps[-1].truncated) == (True, False), "the end in the last step that is allowed"


async def test_all_answers_to_a_row_begin_alike(place: str) -> None:
    async def wanted(**columns: Any) -> list[str]:
        _, steps, _ = await played(f"{place}:hard", *map(str, range(40, 44)), **columns)
        return [step.messages[0]["content"] for step in steps if step.messages]

    assert await wanted() == await wanted(), "by the number of the draw"
    found = [await wanted(seed=seed) for seed in (1, 2)]
    assert found[0] != found[1], "or by a column"


async def test_numbers_and_drawings_are_read_and_shown_as_text() -> None:
    opening, steps, _ = await played("gymnasium:FrozenLake-v1", "I go down: 1", "nowhere", "option 7")
    assert "SFFF\nFHFH\nFFFH\nHFFG" in opening.replace("\x1b[41m", "").replace("\x1b[0m", "")
    assert "(Down)" in steps[0].messages[0]["content"]
    assert [step.messages[0]["content"] for step in steps[1:]] == ["Error: this is no action of Discrete(4)"] * 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gymnasium:CartPole-v1", "its observations are Box.*ObservationWrapper"),
        ("guess_environment:of_pixels", "its observations are Box"),
        ("gymnasium:Nothing-v0", "NameNotFound"),
    ],
)
def test_an_environment_that_is_no_text_is_refused(place: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"episodes\.environment = '{name}' cannot be made: .*{says}"):
        schemas(Episodes(environment=name))


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise ImportError('No module named gymnasium')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match="No module named gymnasium: pip install gymnasium"):
        schemas(Episodes(environment="gymnasium:Missing-v0"))
