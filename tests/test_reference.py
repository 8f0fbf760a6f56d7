"""The page of all keys agrees with the code and lists every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from olmorl import config, reference
from olmorl.keys import Key

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "the configuration changed: run `make docs`"


def test_the_page_has_a_line_for_every_key_and_for_every_rule() -> None:
    lines = reference.page().splitlines()
    keys = [line for line in lines if re.match(r"- `\w+( = .*)?`.*: ", line)]
    assert len(keys) == len(config.reference())
    for key, line in zip(config.reference(), keys, strict=True):
        leaf = key.key.rpartition(".")[2]
        assert line.startswith(f"- `{leaf} = " if key.default else f"- `{leaf}`") and key.default in line, key.key
        assert line.endswith(f": {key.meaning}") and all(choice in line for choice in key.choices), key.key
    assert all(len(rule) > 20 and f"- {rule}" in lines for rule in config.agreements())


def key(**values: Any) -> Key:
    return Key(
        **{"key": "a.b", "default": "", "meaning": "It is.", "type": "text", "choices": (), "bounds": "", **values}
    )


@pytest.mark.parametrize(
    ("described", "line"),
    [
        (key(), "- `b` (text): It is."),
        (key(default="x"), '- `b = "x"`: It is.'),
        (key(type="integer", default="3", bounds=">= 1"), "- `b = 3` (>= 1): It is."),
        (key(type="integer", bounds=">= 1"), "- `b` (integer >= 1): It is."),
        (key(default="x", choices=("x", "y", "z")), '- `b = "x"` (`y` or `z`): It is.'),
        (key(type="number", bounds="> 0", choices=("off",)), "- `b` (number > 0 or `off`): It is."),
        (key(default="[]", type="list of texts"), "- `b = []` (list of texts): It is."),
        (key(bounds="matching ^a*$"), "- `b` (text matching `^a*$`): It is."),
    ],
)
def test_a_line_has_the_default_and_what_the_default_does_not_show(described: Key, line: str) -> None:
    assert reference.line(described) == line


def test_every_section_has_a_heading_and_a_sentence() -> None:
    lines = reference.page().splitlines()
    for section in {key.key.rpartition(".")[0] for key in config.reference()}:
        heading = lines.index(f"## `[{section}]`")
        assert lines[heading + 2].endswith(".") or lines[heading + 2].endswith(").")
