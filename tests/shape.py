"""Prints the shape of the code: files in each folder, state of each class, imports of each file, files of each walk.

    python -m tests.shape

Nothing is enforced: a figure far from the others is a question, not an error.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import ROOT, code_files, import_graph, module_name

WALKS = ROOT / "docs" / "architecture.md"
MOST_ROWS = 10


def attributes(path: Path) -> Iterator[tuple[str, int]]:
    """Every class of a file, with the number of attributes that it assigns or declares."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def walks(text: str) -> dict[str, list[str]]:
    """The files of each walk in order: rows of a table under a heading that begins with "Walk"."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
            title = heading if heading.startswith("Walk") else ""
        elif title and (row := re.match(r"\| *\d+ *\| *`([^`]+)`", line)):
            files = found.setdefault(title, [])
            if row[1] not in files:
                files.append(row[1])
    return found


def main() -> None:
    paths = list(code_files())
    _print("files in a folder", Counter(str(path.parent.relative_to(ROOT)) for path in paths).most_common())
    states = {f"{name} ({path.relative_to(ROOT)})": number for path in paths for name, number in attributes(path)}
    _print("attributes of a class", Counter(states).most_common(MOST_ROWS))
    graph = import_graph()
    imported = {str(path.relative_to(ROOT)): len(graph[module_name(path)]) for path in paths}
    _print("files of this project that a file imports", Counter(imported).most_common(MOST_ROWS))
    _print("public class names in more than one file", [(" ".join(files), name) for name, files in twice().items()])
    if WALKS.exists():
        files = walks(WALKS.read_text(encoding="utf-8"))
        missing = [file for each in files.values() for file in each if not (ROOT / file).exists()]
        _print("files of a walk", [(title, len(each)) for title, each in files.items()])
        _print("files of a walk that do not exist", [(file, "-") for file in missing])


def _print(title: str, rows: list[tuple[str, int]] | list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for name, value in rows or [("none", "")]:
        print(f"  {value:>16}  {name}" if isinstance(value, str) else f"  {value:4d}  {name}")


if __name__ == "__main__":
    main()
