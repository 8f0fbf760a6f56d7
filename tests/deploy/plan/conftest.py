"""Small recipes, and a finished run that took its known rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.plan.simulated_service import SimulatedService

Recipe = Callable[..., config.Config]
RATES = {
    "tokens_per_s": 20.0,
    "batch_slowdown": 0.02,
    "mean_tokens": 40.0,
    "prompt_spread": 0.8,
    "train_tokens_per_s": 300.0,
}


def build_recipe(folder: Path, **overrides: Any) -> config.Config:
    """A recipe from settings like `schedule__max_lag`, on top of small defaults."""
    tree: dict[str, Any] = {
        "run": {"directory": folder, "name": "run", "mode": "simulated"},
        "sampling": {"group_size": 4, "max_tokens": 400},
        "schedule": {"steps": 40, "prompts_per_step": 8, "max_lag": 2},
        "actors": {"max_running": 32},
        "checkpoint": {"every": 40},
        "simulation": {**RATES, "learned_per_version": 0.0},
    }
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        tree.setdefault(section, {})[name] = value
    return config.build(tree)


def run_of(settings: config.Config) -> Path:
    """Run the recipe in simulated time; returns its run directory."""
    SimulatedService(settings, num_actors=1).run()
    (settings.run_dir / "config.toml").write_text(config.to_toml(settings))
    return settings.run_dir


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Builds recipes."""
    return partial(build_recipe, tmp_path)


@pytest.fixture
def finished(recipe: Recipe) -> Callable[..., Path]:
    """Builds recipes and runs them; returns the run directories."""
    return lambda **overrides: run_of(recipe(**overrides))
