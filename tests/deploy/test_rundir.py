"""The recipe that a run directory keeps."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.rundir import KeptRecipe
from olmorl.learner import durable


@pytest.fixture
def recipe(tmp_path: Path) -> KeptRecipe:
    (tmp_path / "t").mkdir()
    return KeptRecipe(config.build({"run": {"directory": tmp_path, "name": "t"}}))


def test_that_of_an_earlier_start_stays_until_this_one_has_trained(
    recipe: KeptRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "t" / "config.toml"
    kept.write_text("of an earlier start")
    recipe.keep(has_trained=False)
    with monkeypatch.context() as full:
        full.setattr(durable, "sync", refuse)
        recipe.keep(has_trained=True)
    assert kept.read_text() == "of an earlier start"
    recipe.keep(has_trained=False)
    assert config.load(kept).run.name == "t"


def test_a_new_run_keeps_its_own_as_soon_as_it_runs(recipe: KeptRecipe, tmp_path: Path) -> None:
    recipe.keep(has_trained=False)
    assert config.load(tmp_path / "t" / "config.toml").run.name == "t"


def refuse(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
