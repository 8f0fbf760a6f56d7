"""What a recipe may say about teachers and a served reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.preflight.recipe_checks import check_names
from olmorl.deploy.supervision.recipe_history import differences
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.presets import resolve

TEACHERS = '[distillation.teachers.math]\nurl = "http://h:1/v1"\nsources = ["math.jsonl"]\n'
REFERENCE = "[objective]\nkl_beta = 0.1\n[objective.kl_reference]\n"
SERVED = f'{REFERENCE}url = "http://h:1/v1"\n'


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
        (REFERENCE, r"objective\.kl_reference\.url: give the address of its server"),
        (f'{REFERENCE}url = "local"\n', r"objective\.kl_reference\.url: give the address of its server"),
        (f"[sampling]\ntemperature = 0.7\n{SERVED}", r"temperature = 0\.7 with objective\.kl_reference"),
        (
            f'[episodes]\nagent = "me"\n{SERVED}',
            r"objective\.kl_reference scores single answers: take out episodes\.agent",
        ),
        (
            f"{SERVED}[learner]\noffload_reference = true\n",
            r"learner\.offload_reference with objective\.kl_reference: the weights of a server never change",
        ),
        (
            SERVED.replace("kl_beta = 0.1", "kl_beta = 0.1\nkl_refresh_every = 2"),
            r"objective\.kl_refresh_every with objective\.kl_reference: the weights of a server never change",
        ),
        (f"{SERVED}timeout = 3\n", r"objective\.kl_reference\.timeout: unknown key; did you mean 'timeout_s'\?"),
        (f"{SERVED}timeout_s = 0\n", r"objective\.kl_reference\.timeout_s: Input should be greater than 0"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.load(recipe(tmp_path, text))


def test_a_secret_in_an_address_is_not_shown(tmp_path: Path) -> None:
    for text in (TEACHERS, SERVED):
        with pytest.raises(ConfigError, match="an address alone") as caught:
            config.load(recipe(tmp_path, text.replace("http://h", "http://user:hidden@h")))
        assert "hidden" not in str(caught.value)


def test_no_function_has_the_name_of_these_verdicts() -> None:
    tree: dict[str, Any] = {
        "verifiers": {"functions": ["mine:teacher", "mine:reference"]},
        "distillation": {"teachers": {"math": {"url": "http://h"}}},
    }
    with pytest.raises(ConfigError, match="teacher is the name of the teacher's verdicts"):
        check_names(config.build(tree))
    tree["distillation"] = {}
    check_names(config.build(tree))
    tree["objective"] = {"kl_beta": 0.1, "kl_reference": {"url": "http://h"}}
    with pytest.raises(ConfigError, match="reference is the name of the reference's verdicts"):
        check_names(config.build(tree))


def test_a_served_reference_is_read_written_and_set_by_its_keys(tmp_path: Path) -> None:
    file = recipe(tmp_path, SERVED)
    loaded = config.load(file, [("objective.kl_reference.timeout_s", "5")])
    assert loaded.objective.kl_reference is not None
    assert (loaded.objective.kl_reference.url, loaded.objective.kl_reference.outage_deadline_s) == ("http://h:1/v1", 50)
    assert config.load(recipe(tmp_path, config.to_toml(loaded))) == loaded
    placed = config.with_key(loaded, "objective.kl_reference.gpus", 4)
    assert list(placed.served) == list(loaded.token_scorers) == ["objective.kl_reference"]
    assert not loaded.served and placed.served_gpus == 4
    assert differences(loaded, config.with_key(loaded, "objective.kl_reference.url", "http://other:2")) == []
    with pytest.raises(ConfigError, match=r"objective\.kl_reference needs a KL term"):
        resolve(config.with_key(loaded, "objective.kl_beta", 0.0).objective, 8)


def test_the_address_of_a_teacher_may_change_at_a_resume_and_its_sources_may_not(tmp_path: Path) -> None:
    before, moved = (
        config.load(recipe(tmp_path, TEACHERS.replace("http://h:1", address)))
        for address in ("http://h:1", "http://i:2")
    )
    assert differences(before, moved) == []
    (found,) = differences(before, config.load(recipe(tmp_path, TEACHERS.replace("math.jsonl", "code.jsonl"))))
    assert found.key == "distillation.teachers.math.sources"
