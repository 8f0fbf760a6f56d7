"""What a recipe may say about teachers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.preflight.recipe_checks import check_names
from olmorl.deploy.supervision.recipe_history import differences
from olmorl.errors import ConfigError

TEACHERS = '[distillation.teachers.math]\nurl = "http://h:1/v1"\nsources = ["math.jsonl"]\n'


def recipe(folder: Path, text: str) -> Path:
    file = folder / "recipe.toml"
    file.write_text(text)
    return file


def test_a_recipe_is_read_and_written_and_a_key_of_a_teacher_is_set_by_its_name(tmp_path: Path) -> None:
    file = recipe(tmp_path, "[distillation]\ncoefficient = 0.5\n" + TEACHERS)
    loaded = config.load(file, [("distillation.teachers.math.url", "http://other:2")])
    assert loaded.distillation.teachers["math"].url == "http://other:2"
    assert (loaded.distillation.coefficient, loaded.distillation.is_alone) == (0.5, True)
    assert config.load(recipe(tmp_path, config.to_toml(loaded))) == loaded
    assert not config.Config().distillation.is_alone


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[distillation.teachers.math]\n", r"distillation\.teachers\.math\.url: give the address of its server"),
        (
            TEACHERS + '[distillation.teachers.a]\nurl = "http://a"\n[distillation.teachers.b]\nurl = "http://b"\n',
            "distillation.teachers: a and b have no sources",
        ),
        ("[distillation]\ncoefficient = 2.0\n", "its keys have no effect without distillation.teachers"),
        ("[sampling]\ntemperature = 0.7\n" + TEACHERS, r"sampling\.temperature = 0\.7 with distillation\.teachers"),
        (
            TEACHERS + 'source = ["x"]\n',
            r"distillation\.teachers\.math\.source: unknown key; did you mean 'sources'\?",
        ),
        (TEACHERS + "timeout_s = 0\n", r"distillation\.teachers\.math\.timeout_s: Input should be greater than 0"),
        ('[distillation]\nteachers = ["http://h"]\n', r"distillation\.teachers: Input should be a valid dictionary"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.load(recipe(tmp_path, text))


def test_a_secret_in_an_address_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an address alone") as caught:
        config.load(recipe(tmp_path, TEACHERS.replace("http://h", "http://user:hidden@h")))
    assert "hidden" not in str(caught.value)


def test_no_function_has_the_name_of_the_teachers_verdicts() -> None:
    tree: dict[str, Any] = {
        "verifiers": {"functions": ["mine:teacher"]},
        "distillation": {"teachers": {"math": {"url": "http://h"}}},
    }
    with pytest.raises(ConfigError, match="teacher is the name of the teachers' verdicts"):
        check_names(config.build(tree))


def test_the_address_of_a_teacher_may_change_at_a_resume_and_its_sources_may_not(tmp_path: Path) -> None:
    before, moved = (
        config.load(recipe(tmp_path, TEACHERS.replace("http://h:1", address)))
        for address in ("http://h:1", "http://i:2")
    )
    assert differences(before, moved) == []
    (found,) = differences(before, config.load(recipe(tmp_path, TEACHERS.replace("math.jsonl", "code.jsonl"))))
    assert found.key == "distillation.teachers.math.sources"
