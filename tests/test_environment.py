"""Variables are set for a while, and every other variable stays as it was left."""

from __future__ import annotations

import os

import pytest

from olmorl.environment import not_set, variables_set


def test_each_variable_gets_its_old_value_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMORL_OLD", "before")
    monkeypatch.delenv("OLMORL_NEW", raising=False)
    monkeypatch.delenv("OLMORL_OTHER", raising=False)
    with pytest.raises(KeyError), variables_set({"OLMORL_OLD": "inside", "OLMORL_NEW": "inside"}):
        assert os.environ["OLMORL_OLD"] == os.environ["OLMORL_NEW"] == "inside"
        monkeypatch.setenv("OLMORL_OTHER", "kept")
        raise KeyError
    assert os.environ["OLMORL_OLD"] == "before"
    assert "OLMORL_NEW" not in os.environ
    assert os.environ["OLMORL_OTHER"] == "kept"


def test_what_the_operator_has_set_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMORL_OLD", "before")
    monkeypatch.delenv("OLMORL_NEW", raising=False)
    assert not_set({"OLMORL_OLD": "1", "OLMORL_NEW": "2"}) == {"OLMORL_NEW": "2"}
