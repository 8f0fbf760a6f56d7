"""Finds text between paired marks in linear time, which a regular expression cannot guarantee."""

from __future__ import annotations

from collections.abc import Iterator


def enclosed(text: str, opening: str, closing: str) -> Iterator[str]:
    """The texts between an opening mark and the next closing mark of the same line, from left to right."""
    for line in text.split("\n"):
        start = line.find(opening)
        while start >= 0:
            start += len(opening)
            end = line.find(closing, start)
            if end < 0:
                break
            yield line[start:end]
            start = line.find(opening, end + len(closing))
