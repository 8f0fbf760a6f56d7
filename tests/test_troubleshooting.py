"""The messages in `docs/operate.md` are those of the code, and the keys beside them are keys."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from olmorl import config, metrics
from tests.syntax_trees import nodes_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "operate.md"
HEADING = "\n## Messages and their fixes\n"
FOLDERS = ("olmorl", "learner", "actors", "queues", "verifiers", "deploy")
GAP = "\0"
"""Where a message has a value."""


@cache
def texts() -> str:
    """Every string of the code, one a line, with gaps for values; and the Makefile."""
    found = [(ROOT / "Makefile").read_text(encoding="utf-8")]
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in nodes_of(path):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition(HEADING)[2]


def rows() -> list[list[str]]:
    lines = section().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[-1] != "cause and fix"]


def messages() -> list[str]:
    """First columns that are a message, whole or in parts; names of fields and folders are none."""
    quoted = [match[1] for row in rows() if (match := re.match(r"`([^`]+)`", row[0]))]
    return [message for message in quoted if " " in message]


def test_there_are_at_least_thirty_symptoms_each_with_cause_and_fix() -> None:
    assert len(rows()) >= 30 and len(messages()) >= 25
    assert all(len(row) == 2 and all(row) for row in rows())


@pytest.mark.parametrize("message", messages())
def test_the_code_says_it(message: str) -> None:
    parts = [part.strip(" :;,()") for part in message.split("...")]
    parts = [part for part in parts if len(part) > 2]
    pattern = r"[^\n]*?".join(re.escape(part) for part in parts)
    assert re.search(pattern, texts()), f"no string of the code has {parts} in this order"


def test_keys_and_fields_that_it_names_exist() -> None:
    keys = {key.key for key in config.reference()}
    sections = {key.partition(".")[0] for key in keys}
    named = re.findall(r"`([a-z_]+\.[a-z_.]+)(?: = [^`]*)?`", section())
    unknown = [name for name in named if name.partition(".")[0] in sections and name not in keys]
    assert unknown == []
    fields = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", "".join(row[0] for row in rows()))
    assert fields and set(fields) <= set(metrics.ALWAYS)
