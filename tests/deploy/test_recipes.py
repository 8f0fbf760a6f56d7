from __future__ import annotations

from pathlib import Path

import pytest

from olmorl import config

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
