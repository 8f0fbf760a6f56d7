"""A run records the recipe of each start, and a resume refuses changes that it cannot make."""

from __future__ import annotations

import errno
import itertools
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from olmorl import __version__, config
from olmorl.deploy import launch
from olmorl.deploy.supervision import recipe_history
from olmorl.deploy.supervision.recipe_history import KeptRecipe
from olmorl.deploy.supervision.refused_start import check_can_be_made, left_as_found
from olmorl.deploy.supervision.run_lock import RunLock
from olmorl.errors import ConfigError
from olmorl.learner.storage import durable_files
from olmorl.run_dir import RunFiles


def settings(folder: Path, **sections: Any) -> config.Config:
    return config.build({"run": {"directory": str(folder), "name": "t"}, **sections})


def keep_config(settings: config.Config) -> None:
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    RunFiles(settings.run_dir).config.write_text(config.to_toml(recipe_history.spelled_out(settings)))


def test_the_same_recipe_again_is_no_change(tmp_path: Path) -> None:
    for preset in ("olmorl", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo_decoupled"):
        same = settings(tmp_path, objective={"preset": preset}, verifiers={"weights": {"math": 2.0}})
        keep_config(same)
        assert recipe_history.check_change(recipe_history.spelled_out(same), change=False) == []
        assert recipe_history.check_change(same, change=False) == [], "also before the preset is written out"


def test_a_recipe_of_a_version_that_did_not_write_presets_out_is_the_same(tmp_path: Path) -> None:
    before = settings(tmp_path, objective={"preset": "dapo"})
    before.run_dir.mkdir()
    RunFiles(before.run_dir).config.write_text(config.to_toml(before))
    assert recipe_history.check_change(recipe_history.spelled_out(before), change=False) == []


def test_what_differs_is_named_with_both_values_and_has_to_be_meant(tmp_path: Path) -> None:
    keep_config(settings(tmp_path, schedule={"max_lag": 4}, verifiers={"weights": {"math": 2.0}}))
    now = settings(tmp_path, learner={"learning_rate": 1e-5}, sampling={"stop": ["END"]})
    with pytest.raises(ConfigError, match=r"--resume --change") as refused:
        recipe_history.check_change(now, change=False)
    wanted = [
        ("sampling.stop", "[]", '["END"]'),
        ("schedule.max_lag", "4", "1"),
        ("learner.learning_rate", "1e-06", "1e-05"),
        ("verifiers.weights.math", "2.0", "not set"),
    ]
    assert [tuple(difference) for difference in recipe_history.check_change(now, change=True)] == wanted
    for key, before, after in wanted:
        assert f"{key}: {before} -> {after}" in str(refused.value)


def test_where_a_run_is_may_change_without_a_word(tmp_path: Path) -> None:
    keep_config(settings(tmp_path))
    elsewhere = config.build(
        {"run": {"directory": str(tmp_path), "name": "t"}, "cluster": {"address": "10.0.0.1:6379"}}
    )
    assert recipe_history.check_change(elsewhere, change=False) == []


def test_a_run_that_kept_nothing_yet_is_resumed(tmp_path: Path) -> None:
    assert recipe_history.check_change(settings(tmp_path), change=False) == []


def test_every_start_is_kept_with_command_line_and_version(tmp_path: Path) -> None:
    first, second = settings(tmp_path), settings(tmp_path, schedule={"max_lag": 4})
    first.run_dir.mkdir()
    recipe_history.record_start(first, ["recipe.toml"])
    recipe_history.record_start(second, ["recipe.toml", "--resume", "--data.system_prompt", "two\nlines [run]"])
    one, two = sorted((first.run_dir / "starts").iterdir())
    assert (one.name, two.name) == ("001.toml", "002.toml")
    assert config.load(one) == first and config.load(two) == second, "a start is a recipe"
    text = two.read_text()
    assert f"# olmorl {__version__}\n" in text
    assert r"# olmorl-launch recipe.toml --resume --data.system_prompt 'two\nlines [run]'" in text


def test_a_start_that_cannot_be_kept_ends_no_run(tmp_path: Path) -> None:
    begun = settings(tmp_path)
    begun.run_dir.mkdir()
    (begun.run_dir / "starts").touch()
    recipe_history.record_start(begun, ["recipe.toml"])
    assert (begun.run_dir / "starts").read_bytes() == b""


def test_a_dry_run_shows_the_preset_as_it_will_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[sampling]\nmax_tokens = 100\n[objective]\npreset = "dapo"\neps_low = 0.1\n')
    assert launch.main([str(recipe), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for line in ("eps_low = 0.1", "eps_high = 0.28", 'rho = "off"', "kl_beta = 0.0", "overlong_buffer = 20"):
        assert f"\n{line}\n" in shown
    assert not re.search("rho_kind|kl_estimator|constant_length", shown), "nothing without an effect"


@pytest.mark.parametrize(("always", "fails"), list(itertools.product([True, False], repeat=2)))
def test_a_start_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path, always: bool, fails: bool) -> None:
    run_dir = tmp_path / "runs" / "t"
    try:
        with left_as_found(run_dir, always=always):
            (run_dir / "logs").mkdir(parents=True)
            if fails:
                raise ConfigError("no")
    except ConfigError:
        pass
    assert run_dir.exists() is not (always or fails)
    assert (tmp_path / "runs").exists() is not (always or fails)


def test_a_folder_that_was_there_or_holds_a_run_stays(tmp_path: Path) -> None:
    there, begun = tmp_path / "there", tmp_path / "begun"
    there.mkdir()
    with pytest.raises(ConfigError), left_as_found(there, always=True):
        raise ConfigError("no")
    with pytest.raises(ConfigError), left_as_found(begun, always=True):
        (begun / "ledger").mkdir(parents=True)
        (begun / "ledger" / "000001.jsonl").touch()
        raise ConfigError("no")
    assert there.exists() and begun.exists()


def test_what_another_launcher_has_made_meanwhile_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "t"
    with ExitStack() as others:
        with pytest.raises(ConfigError, match="no"), left_as_found(run_dir, always=True):
            others.enter_context(RunLock(run_dir))
            raise ConfigError("no")
        assert (run_dir / ".lock").exists()


def test_a_folder_is_tried_without_a_trace(tmp_path: Path) -> None:
    check_can_be_made(tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    check_can_be_made(tmp_path / "there" / "new")
    check_can_be_made(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.fixture
def recipe(tmp_path: Path) -> KeptRecipe:
    (tmp_path / "t").mkdir()
    return KeptRecipe(config.build({"run": {"directory": tmp_path, "name": "t"}}))


def test_that_of_an_earlier_start_stays_until_this_one_has_trained(
    recipe: KeptRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "t" / "config.toml"
    kept.write_text("of an earlier start")
    recipe.write_when_due(has_trained=False)
    with monkeypatch.context() as full:
        full.setattr(durable_files, "sync", refuse)
        recipe.write_when_due(has_trained=True)
    assert kept.read_text() == "of an earlier start"
    recipe.write_when_due(has_trained=False)
    assert config.load(kept).run.name == "t"


def test_a_new_run_keeps_its_own_as_soon_as_it_runs(recipe: KeptRecipe, tmp_path: Path) -> None:
    recipe.write_when_due(has_trained=False)
    assert config.load(tmp_path / "t" / "config.toml").run.name == "t"


def refuse(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_more_steps_of_a_decayed_rate_name_the_jump_and_the_way_around_it(tmp_path: Path) -> None:
    decayed = {"learning_rate": 1e-6, "schedule": "linear"}
    before = settings(tmp_path, learner=decayed, schedule={"steps": 50})
    keep_config(before)
    RunFiles(before.run_dir).metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 51)))
    longer = settings(tmp_path, learner=decayed, schedule={"steps": 100})
    with pytest.raises(ConfigError, match=r"learning rate: 2e-08 \(step 50\) -> 5e-07 \(step 51\)") as refused:
        recipe_history.check_change(longer, change=False)
    assert 'learner.extended = "keep 50" or "decay 50"' in str(refused.value)
    assert "learning rate" in [difference.key for difference in recipe_history.check_change(longer, change=True)]
    for rate in ("keep", "decay"):
        kept = settings(
            tmp_path,
            learner={**decayed, "extended": f"{rate} 50"},
            schedule={"steps": 100},
        )
        found = [difference.key for difference in recipe_history.check_change(kept, change=True)]
        assert "schedule.steps" in found and "learning rate" not in found


def test_a_run_that_is_extended_again_goes_on_from_its_last_rate(tmp_path: Path) -> None:
    def extended(rate: str, steps: int) -> config.Config:
        learner = {"learning_rate": 1e-6, "schedule": "linear", "extended": rate}
        return settings(tmp_path, learner=learner, schedule={"steps": steps})

    before = extended("decay 50", 100)
    keep_config(before)
    RunFiles(before.run_dir).metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 101)))
    with pytest.raises(ConfigError, match=r"learning rate: 3.92e-10 \(step 100\)") as refused:
        recipe_history.check_change(extended("decay 50", 150), change=False)
    ways = re.findall(r'"(decay 50, \w+ 100)"', str(refused.value))
    assert len(ways) == 2
    for way in ways:
        found = [difference.key for difference in recipe_history.check_change(extended(way, 150), change=True)]
        assert "schedule.steps" in found and "learning rate" not in found
