"""Syntax trees of source files, read where nothing else can parse."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path


def tree_of(path: Path) -> ast.Module:
    """Parse a file without a garbage collection in between."""
    return parse(path.read_text(encoding="utf-8"))


def parse(source: str) -> ast.Module:
    """Parse a text without a garbage collection in between.

    A task that is collected logs its traceback, which parses a line, and Python before 3.11.8 then raises SystemError.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def nodes_of(path: Path) -> Iterator[ast.AST]:
    """All nodes of the tree of a file."""
    return ast.walk(tree_of(path))
