"""The page of all keys agrees with the code and lists every key."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from olmorl import config, reference
from olmorl.keys import Key

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "the configuration changed: run `make docs`"


def test_the_page_has_a_line_for_every_key_and_for_every_rule() -> None:
    page = reference.page()
    for section, keys in groupby(config.reference(), lambda key: key.key.rpartition(".")[0]):
        text = page.partition(f"\n## `[{section}]`\n")[2].partition("\n## ")[0]
        for key in keys:
            line, leaf = reference.line(key), key.key.rpartition(".")[2]
            elsewhere = re.search(rf"^- As in `\[(.+)\]`: .*`{leaf}`", text, re.MULTILINE)
            place = page.partition(f"\n## `[{elsewhere[1]}]`\n")[2].partition("\n## ")[0] if elsewhere else text
            assert line in place.splitlines(), key.key
            assert key.default in line and all(choice in line for choice in key.choices) and line.endswith(key.meaning)
    assert all(len(rule) > 20 and f"- {rule}" in page.splitlines() for rule in config.agreements())


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
        (key(default="x", choices=("x", "y"), meaning="`y`: more."), '- `b = "x"`: `y`: more.'),
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
