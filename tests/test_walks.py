"""The walks of `docs/architecture.md` name functions that are in their files, and open few files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MOST_FILES = (9, 12, 12)


class Stop(NamedTuple):
    """One file of a walk."""

    file: str
    functions: tuple[str, ...]


def walks() -> list[list[Stop]]:
    """The stops of every walk, in order."""
    parts = re.split(r"^## Walk \d: .*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [[stop(line) for line in part.splitlines() if re.match(r"\| \d+ \|", line)] for part in parts]


def stop(line: str) -> Stop:
    _, file, functions, _ = (cell.strip() for cell in line.strip("|").split("|"))
    return Stop(file.strip("`"), tuple(re.findall(r"`(\w+)`", functions)))


@pytest.mark.parametrize(("walk", "most"), list(zip(walks(), MOST_FILES, strict=True)))
def test_a_walk_opens_few_files_and_its_functions_are_there(walk: list[Stop], most: int) -> None:
    assert 5 < len({stop.file for stop in walk}) == len(walk) <= most
    for file, functions in walk:
        defined = set(re.findall(r"^ *(?:async )?def (\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))
        assert functions and set(functions) <= defined, f"{file} has no {set(functions) - defined}"
