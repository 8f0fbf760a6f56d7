"""The rules of the house: the star of imports, no cycle, heavy libraries behind one door, everything packaged."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPOKES = ("learner", "actors", "queues", "verifiers")
FOLDERS = (*SPOKES, "deploy")
DOORS = {
    "vllm": {"actors"},
    "deepspeed": {"learner"},
    "ray": {"deploy", "queues"},
    "redis": {"queues"},
}


def code_files() -> Iterator[Path]:
    for folder in ("olmorl", *FOLDERS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "olmorl":
        parts = ("olmorl", *parts)
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path, at_import_only: bool = False) -> set[str]:
    """Modules that a file imports; `at_import_only` leaves out those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes: list[ast.AST] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        nodes.append(node)
        if not (at_import_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            stack.extend(ast.iter_child_nodes(node))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_spokes_import_only_the_core() -> None:
    for path in code_files():
        spoke = path.relative_to(ROOT).parts[0]
        for other in (*FOLDERS,):
            if spoke in SPOKES and other != spoke:
                used = {m for m in imports(path) if m == f"olmorl.{other}" or m.startswith(f"olmorl.{other}.")}
                assert not used, f"{path.relative_to(ROOT)} imports {used}: go through a port of the core"


def test_the_core_imports_no_folder_and_no_heavy_library() -> None:
    for path in (ROOT / "olmorl").glob("*.py"):
        for module in imports(path):
            top = module.split(".")[0]
            assert top not in ("torch", "vllm", "deepspeed", "ray", "redis", "transformers"), f"{path.name}: {module}"
            assert not module.startswith(tuple(f"olmorl.{folder}" for folder in FOLDERS)), f"{path.name}: {module}"


@pytest.mark.parametrize("library", DOORS)
def test_heavy_libraries_have_one_door(library: str) -> None:
    by_name = f'import_module("{library}"'
    users = {
        path.relative_to(ROOT)
        for path in code_files()
        if library in {m.split(".")[0] for m in imports(path)} or by_name in path.read_text(encoding="utf-8")
    }
    assert {path.parts[0] for path in users} <= DOORS[library], users
    assert users, f"nothing imports {library}: then it is no dependency"


def test_no_import_cycle() -> None:
    names = {module_name(path): path for path in code_files()}
    graph = {
        name: {m for m in imports(path, at_import_only=True) if m in names} - {name} for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for used in graph[name]:
                visit(used, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert done == set(names)


def test_every_code_folder_is_packaged_and_linked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in code_files()}
    folders |= {
        p.parent.relative_to(ROOT)
        for kind in ("toml", "lua", "json")
        for f in FOLDERS
        for p in (ROOT / f).rglob(f"*.{kind}")
    }
    for folder in folders:
        package = ".".join(folder.parts if folder.parts[0] == "olmorl" else ("olmorl", *folder.parts))
        assert package in setuptools["packages"], f"{folder} would miss the wheel: add {package} to pyproject.toml"
        assert setuptools["package-dir"][package] == str(folder)
    for folder in FOLDERS:
        link = ROOT / "olmorl" / folder
        assert link.is_symlink() and link.resolve() == ROOT / folder
        assert not (ROOT / folder / "__init__.py").exists()


def test_files_stay_readable() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in code_files()
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 330
    }
    allowed = {"olmorl/config.py", "olmorl/ports.py", "olmorl/messages.py"}
    assert set(long) <= allowed, long
