"""Small recipes, and a finished run that took its known rates."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Builds a recipe from dotted settings, on top of small defaults."""

    def build(**overrides: Any) -> config.Config:
        tree: dict[str, Any] = {
            "run": {"directory": tmp_path, "name": "run", "mode": "simulated"},
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

    return build


@pytest.fixture
def finished(recipe: Recipe) -> Callable[..., Path]:
    """Runs a recipe in simulated time; returns its run directory."""

    def run(**overrides: Any) -> Path:
        settings = recipe(**overrides)
        SimulatedService(settings, num_actors=1).run()
        (settings.run_dir / "config.toml").write_text(config.to_toml(settings))
        return settings.run_dir

    return run
