"""The recipe's sections of the judge and the reward model."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from olmorl import config
from olmorl.errors import ConfigError


def built(**judge: Any) -> config.Config:
    return config.build({"verifiers": {"judge": judge}})


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        ({"url": "host:8000"}, "write an address"),
        ({"url": "ftp://host"}, "write an address"),
        ({"url": "http://"}, "write an address"),
        ({"url": "http://host/v1?key=secret"}, "an address alone"),
        ({"url": "https://user:secret@host/v1"}, "an address alone"),
        ({"url": "user:secret@host:8000"}, "an address alone"),
        ({"url": "http://user:secret@host/v1?x=1"}, "an address alone"),
        ({"api_key_env": "sk-secret"}, "verifiers.judge.api_key_env"),
        ({"urll": "http://host"}, "did you mean 'url'"),
        ({"timeout_s": 0}, "verifiers.judge.timeout_s"),
    ],
)
def test_what_is_refused(judge: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as failed:
        built(**judge)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("verifiers", {"judge": "https://user:secret@host"}),
        ("verifiers", {"reward_model": {"url": ["https://user:secret@host"]}}),
        ("queue", "redis://user:secret@host"),
        ("queue", {"url": ["redis://user:secret@host"]}),
    ],
)
def test_what_stands_where_a_secret_may_be_is_not_shown(section: str, what: Any) -> None:
    with pytest.raises(ConfigError, match=section) as failed:
        config.build({section: what})
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("url", ["http://host:8000", "https://host/v1", "http://[::1]:8000", "local"])
def test_a_recipe_survives_being_written(url: str) -> None:
    settings = built(url=url, model="big", template="judge.txt")
    assert config.build(tomllib.loads(config.to_toml(settings))) == settings


def test_a_recipe_with_any_characters_survives_being_written() -> None:
    text = "".join(map(chr, range(256))) + "\u2028\U0001f600\\u0041"
    settings = config.build({"sampling": {"stop": [text]}, "data": {"system_prompt": text}})
    assert config.build(tomllib.loads(config.to_toml(settings))) == settings


def test_engines_have_room_for_what_is_evaluated_and_rows_for_what_is_trained() -> None:
    sizes = {"data": {"max_prompt_tokens": 100}, "sampling": {"max_tokens": 200}, "evaluation": {"max_tokens": 500}}
    without = config.build(sizes)
    assert (without.max_model_len, without.row_tokens) == (300, 300)
    settings = config.build({**sizes, "evaluation": {"max_tokens": 500, "data": ["held.jsonl"]}})
    assert (settings.max_model_len, settings.row_tokens) == (600, 300)


def test_every_key_is_listed_with_its_meaning() -> None:
    keys = {key.key: (key.default, key.meaning) for key in config.reference()}
    assert keys["verifiers.judge.concurrency"] == ("32", "Most calls of one actor at one time.")
    assert keys["verifiers.reward_model.squash"][0] == "sigmoid"
    assert keys["schedule.max_lag"][0] == "1"
    assert "verifiers.judge" not in keys
