"""Reads the word lists of `vocabulary.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("vocabulary.toml")


def listed(name: str) -> list[str]:
    """The words of a list, in the order of the file."""
    return _lists()[name].split()


@cache
def vocabulary(name: str) -> frozenset[str]:
    """The words of a list, as a set."""
    return frozenset(listed(name))


@cache
def _lists() -> dict[str, str]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
