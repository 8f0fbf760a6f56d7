from __future__ import annotations

from pathlib import Path

import pytest

from olmorl import config
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.presets import resolve

FOLDER = Path(__file__).parents[2] / "deploy" / "recipes"


# Table 49 of the Olmo 3 report: learning rate, prompts, response tokens, rho, minibatches, asynchrony, GPUs, steps.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("olmo3-7b-think", (1e-6, 64, 32768, 2.0, 1, 1, 16, 56, 1400)),
        ("olmo3-32b-think", (2e-6, 128, 32768, 2.0, 1, 8, 64, 160, 750)),
        ("olmo3-7b-instruct", (1e-6, 64, 8192, 2.0, 4, 8, 8, 56, 450)),
        ("olmo3-7b-rl-zero", (1e-6, 32, 16384, 2.0, 1, 8, 8, 64, 2000)),
    ],
)
def test_the_olmo_3_recipes_have_the_published_numbers(name: str, expected: tuple[object, ...]) -> None:
    # But for rho: the paper has none for two of them, and here nothing else corrects for stale tokens.
    recipe = config.load(FOLDER / f"{name}.toml")
    actors = recipe.actors
    assert actors.engines_per_node is not None
    assert expected == (
        recipe.learner.learning_rate,
        recipe.schedule.prompts_per_step,
        recipe.sampling.max_tokens,
        recipe.objective.rho,
        recipe.learner.minibatches,
        recipe.schedule.max_lag,
        recipe.learner.nodes * recipe.learner.ranks_per_node,
        actors.nodes * actors.engines_per_node * actors.tensor_parallel,
        recipe.schedule.steps,
    )
    assert (recipe.sampling.group_size, recipe.data.max_prompt_tokens) == (8, 2048)
    assert (recipe.learner.zero_stage, recipe.learner.gradient_checkpointing, recipe.model.dtype) == (
        3,
        "auto",
        "bfloat16",
    )


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.toml")), ids=lambda path: path.stem)
def test_each_shipped_recipe_is_one(path: Path) -> None:
    recipe = config.load(path)
    resolve(recipe.objective, recipe.sampling.max_tokens)
    if path.parent != FOLDER:
        demo = config.load(FOLDER / "demo.toml")
        assert recipe.run.name == path.stem, "runs of two recipes have two folders"
        assert recipe != demo.model_copy(update={"run": recipe.run}), "it changes something of the demo"


def test_a_recipe_on_top_of_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        '[schedule]\nsteps = 3\nmax_lag = 4\n[learner.deepspeed]\n"a.b" = 1\n"a.c" = 2\n[data]\ntrain = ["x", "y"]\n'
    )
    (tmp_path / "folder").mkdir()
    own = tmp_path / "folder" / "own.toml"
    own.write_text(
        'extends = "../base.toml"\n[schedule]\nsteps = 5\n[learner.deepspeed]\n"a.b" = 3\n[data]\ntrain = ["z"]\n'
    )
    recipe = config.load(own, [("schedule.max_lag", "1")])
    assert (recipe.schedule.steps, recipe.schedule.max_lag) == (5, 1)
    assert recipe.learner.deepspeed == {"a.b": 3, "a.c": 2}
    assert recipe.data.train == ["z"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('extends = "none.toml"', r"none\.toml: no such recipe \(.*own\.toml extends it\)"),
        ("extends = 3", r"own\.toml: extends: names one recipe, as in extends = \"demo\.toml\" \(got 3\)"),
        ('extends = "own.toml"', r"own\.toml: it extends itself, by way of .*own\.toml"),
        ('[run]\nextends = "own.toml"', r"run\.extends: unknown key"),
    ],
)
def test_a_recipe_that_extends_nothing_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        config.load(tmp_path / "own.toml")
