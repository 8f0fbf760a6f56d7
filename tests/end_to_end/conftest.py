"""Runs with a small random policy, or without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.history import violations
from tests.end_to_end import recipes
from tests.end_to_end.launching import Launch


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy with its tokenizer."""
    return recipes.make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def launch(tmp_path: Path, policy: Path) -> Iterator[Callable[[str], Launch]]:
    """Makes a run with more lines for its recipe. Its processes are ended by id after the test."""
    made: list[Launch] = []

    def make(more: str) -> Launch:
        made.append(recipes.real(tmp_path, policy, more))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Callable[[str], Launch]]:
    """Makes a run without a model, of two ranks and two engines, with more lines for its recipe; ended as above."""
    made: list[Launch] = []

    def make(more: str) -> Launch:
        made.append(recipes.simulated(tmp_path, more))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture
def check_history() -> Callable[[Launch, int, int], None]:
    """Asserts that so many steps were done, and that their history is what it has to be."""

    def check(run: Launch, steps: int, max_lag: int) -> None:
        assert len(run.lines()) == steps
        assert violations(run.run_dir, prompts_per_step=4, max_lag=max_lag) == []

    return check
