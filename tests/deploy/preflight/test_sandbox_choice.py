"""A run says which sandbox scores programs, and takes the weaker one only by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.preflight.local_checks import check_sandbox, with_named_sandbox
from olmorl.deploy.supervision.recipe_history import differences
from olmorl.errors import ConfigError


def settings(tmp_path: Path, **verifiers: Any) -> config.Config:
    return config.build({"run": {"directory": str(tmp_path)}, "verifiers": {"workers": 1, **verifiers}})


def test_a_run_without_a_name_wants_the_stronger_sandbox(tmp_path: Path) -> None:
    named = with_named_sandbox(settings(tmp_path))
    assert named.verifiers.code_tier == "bubblewrap"
    assert with_named_sandbox(settings(tmp_path, code_tier="landlock")).verifiers.code_tier == "landlock"
    assert differences(named, settings(tmp_path)) == []


def test_where_bubblewrap_is_missing_the_run_asks_for_the_weaker_one_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r'install the package bubblewrap.*verifiers\.code_tier = "landlock"'):
        check_sandbox(with_named_sandbox(settings(tmp_path)), {"math", "code"})
    capsys.readouterr()
    check_sandbox(settings(tmp_path, code_tier="landlock"), {"code_stdio"})
    assert capsys.readouterr().out == "programs of the model run in the sandbox landlock\n"


def test_tools_that_run_programs_need_a_sandbox_as_verifiers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    made = settings(tmp_path).model_copy(update={"episodes": config.Episodes(environment="box:python,submit")})
    with pytest.raises(ConfigError, match="install the package bubblewrap"):
        check_sandbox(with_named_sandbox(made), {"math"})
    capsys.readouterr()
    check_sandbox(made.model_copy(update={"episodes": config.Episodes(environment="box:submit")}), {"math"})
    assert capsys.readouterr().out == ""


def test_bash_with_the_weaker_sandbox_is_refused_before_anything_starts(tmp_path: Path) -> None:
    made = settings(tmp_path, code_tier="landlock").model_copy(
        update={"episodes": config.Episodes(environment="box:bash")}
    )
    with pytest.raises(ConfigError, match=r"episodes\.environment = 'box:bash'.* only with .*\"bubblewrap\""):
        check_sandbox(made, {"math"})


def test_a_run_without_programs_needs_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check_sandbox(with_named_sandbox(settings(tmp_path)), {"math"})
    assert capsys.readouterr().out == ""
