"""Prints the shape of the code: files in each folder, state of each class, imports of each file, files of each walk.

    python -m tests.shape [--files]

A figure far from the others is a question, not an error. Only the files of a walk must not become more: see
`tests/paths`. With `--files` it lists them.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.paths.walks import KEY
from tests.syntax_trees import nodes_of
from tests.test_architecture import ROOT, code_files, import_graph, module_name

MOST_ROWS = 10


def attributes(path: Path) -> Iterator[tuple[str, int]]:
    """Every class of a file, with the number of attributes that it assigns or declares."""
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef):
            declared = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            assigned = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
            yield node.name, len(declared | assigned)


def twice() -> dict[str, list[str]]:
    """Public class names that more than one file defines, with those files."""
    found: dict[str, list[str]] = {}
    for path in code_files():
        for name, _ in attributes(path):
            if not name.startswith("_"):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


def naming(key: str) -> list[str]:
    """The files whose code names a key of the recipe: as an attribute, a variable or an argument."""
    return [str(path.relative_to(ROOT)) for path in code_files() if not {key, f"_{key}"}.isdisjoint(_names(path))]


def _names(path: Path) -> Iterator[str | None]:
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg


def called() -> dict[str, list[str]]:
    """The files that each walk of `tests.paths` really calls."""
    done = subprocess.run([sys.executable, "-m", "tests.paths"], check=True, stdout=subprocess.PIPE, cwd=ROOT)
    files: dict[str, list[str]] = json.loads(done.stdout)
    return files


def main() -> None:
    paths = list(code_files())
    _print("files in a folder", Counter(str(path.parent.relative_to(ROOT)) for path in paths).most_common())
    states = {f"{name} ({path.relative_to(ROOT)})": number for path in paths for name, number in attributes(path)}
    _print("attributes of a class", Counter(states).most_common(MOST_ROWS))
    graph = import_graph()
    imported = {str(path.relative_to(ROOT)): len(graph[module_name(path)]) for path in paths}
    _print("files of this project that a file imports", Counter(imported).most_common(MOST_ROWS))
    _print("public class names in more than one file", [(" ".join(files), name) for name, files in twice().items()])
    _print("files that name a key", [(KEY, len(naming(KEY)))])
    walks = called()
    _print("files that are called when", [(title, len(files)) for title, files in walks.items()])
    if "--files" in sys.argv:
        for title, files in walks.items():
            print(f"\n{title}", *files, sep="\n  ")


def _print(title: str, rows: list[tuple[str, int]] | list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for name, value in rows or [("none", "")]:
        print(f"  {value:>16}  {name}" if isinstance(value, str) else f"  {value:4d}  {name}")


if __name__ == "__main__":
    main()
