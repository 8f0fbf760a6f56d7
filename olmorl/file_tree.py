"""Files that a row brings as texts: the column `files` of episodes with the tool `bash`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def row_files(column: Any) -> dict[str, str]:
    """The texts of a column by their paths in the tree. In tables a path of another row has no text, and is left out.

    Raises:
        ValueError: it has something else, or a path that leads out of the tree.
    """
    if not isinstance(column, Mapping | None):
        raise ValueError(f"its column files has to hold texts by relative path, and is {str(column)[:80]!r}")
    files = {path: text for path, text in (column or {}).items() if text is not None}
    for path, text in files.items():
        if not isinstance(path, str) or not _is_inside(path):
            raise ValueError(f"its column files has {str(path)[:80]!r}, which is no relative path inside of the tree")
        if not isinstance(text, str):
            raise ValueError(f"its column files has no text under {path}")
    return files


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return path.isprintable() and not {"", ".", ".."}.intersection(parts)
