"""The page of all keys agrees with the code and lists every key."""

from __future__ import annotations

from pathlib import Path

from olmorl import config, reference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "the configuration changed: run `make docs`"


def test_the_page_has_a_row_for_every_key_and_a_line_for_every_rule() -> None:
    lines = reference.page().splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(config.reference())
    for key in config.reference():
        leaf = key.key.rpartition(".")[2]
        default = f"`{key.default}`" if key.default else "*none*"
        assert any(row.startswith(f"| `{leaf}` |") and f"| {default} | {key.meaning} |" in row for row in rows), key.key
    assert all(len(rule) > 20 and f"- {rule}" in lines for rule in config.agreements())


def test_every_section_has_a_heading_and_a_sentence() -> None:
    lines = reference.page().splitlines()
    for section in {key.key.rpartition(".")[0] for key in config.reference()}:
        heading = lines.index(f"## `[{section}]`")
        assert lines[heading + 2].endswith(".") or lines[heading + 2].endswith(").")
