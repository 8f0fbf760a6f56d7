"""Recipes and runs of earlier versions: what happens to keys that no longer exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from olmorl import config, deadlines, toml
from olmorl.errors import ConfigError
from olmorl.removed_keys import REMOVED

KEYS = {key.key for key in config.reference()}


def recipe(folder: Path, key: str, value: object) -> Path:
    section, _, name = key.rpartition(".")
    file = folder / "recipe.toml"
    file.write_text(f"[{section}]\n{name} = {toml.literal(value)}\n", encoding="utf-8")
    return file


SINCE_THEN = 31
"""Keys of features that came after the clean-up."""


def test_there_are_few_keys_and_none_of_them_is_listed_as_removed() -> None:
    assert len(KEYS) <= 150 + SINCE_THEN, "a new key must be worth it: raise SINCE_THEN, or derive or merge others"
    assert not KEYS & set(REMOVED)


@pytest.mark.parametrize("key", REMOVED)
def test_an_old_recipe_is_told_what_to_do_unless_it_asks_for_what_happens_anyway(tmp_path: Path, key: str) -> None:
    default, advice = REMOVED[key]
    if default == default:
        assert config.load(recipe(tmp_path, key, default)) == config.Config()
    file = recipe(tmp_path, key, "another")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:\n  {key} (line 2): this key was removed: {advice}")):
        config.load(file)
    assert config.load(file, of_run=True) == config.Config()


@pytest.mark.parametrize("key", REMOVED)
def test_the_advice_names_keys_that_exist(key: str) -> None:
    named = re.findall(
        r"\b(?:learner|actors|verifiers|queue|weights|cluster|supervision|data)\.[\w.]+\w", REMOVED[key][1]
    )
    passed_on = tuple(f"{name}." for name in ("actors.vllm", "learner.deepspeed"))
    assert all(name in KEYS or name.startswith(passed_on) for name in named)


def test_the_line_is_that_of_the_key_in_its_section(tmp_path: Path) -> None:
    text = '[verifiers]  # rewards\nworkers = 2\n[ verifiers.judge ]\n# retries = 1\nretries=9\n[queue]\nurl = "x"\n'
    (file := tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"\n  verifiers\.judge\.retries \(line 5\): this key was removed"):
        config.load(file)


def test_a_removed_key_on_the_command_line_is_told_the_same() -> None:
    with pytest.raises(
        ConfigError, match=r"command line:\n  actors.prefix_caching: this key was removed: set actors.v"
    ):
        config.load(None, [("actors.prefix_caching", "false")])


def test_patience_multiplies_the_deadlines_and_no_key_of_a_simulation_is_listed() -> None:
    patient = config.Supervision(patience=5).deadlines
    assert patient == tuple(5 * seconds for seconds in deadlines.BUILT_IN)
    least = config.Supervision(patience=0.25).deadlines
    assert least.heartbeat_s >= 2 * deadlines.BETWEEN_HEARTBEATS_S, "a heartbeat may be late"
    assert not any(key.startswith("simulation") for key in KEYS)
    assert config.build({"simulation": {"tokens_per_s": 7}}).simulation.tokens_per_s == 7


def test_no_page_names_a_removed_key() -> None:
    root = Path(__file__).parents[1]
    text = "".join(page.read_text(encoding="utf-8") for page in (root / "README.md", *root.glob("docs/*.md")))
    assert [key for key in REMOVED if re.search(rf"\b{re.escape(key)}\b", text)] == []
