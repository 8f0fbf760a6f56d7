"""Which file may import which: the star of folders, the order of rooms, no cycle, one folder per heavy library."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

from tests.syntax_trees import nodes_of

ROOT = Path(__file__).resolve().parent.parent
SPOKES = ("learner", "actors", "queues", "verifiers")
FOLDERS = (*SPOKES, "deploy")
DOORS = {
    "vllm": {"actors", "queues"},
    "deepspeed": {"learner"},
    "ray": {"deploy", "queues"},
    "redis": {"queues"},
}

ROOMS: dict[str, dict[str, str]] = {
    "actors": {"episodes": "leased_groups vllm_engine"},
    "learner": {
        "batching": "algorithm storage",
        "orchestrator": "background batching storage waits",
        "storage": "background waits",
        "trainer": "algorithm batching data storage",
    },
    "queues": {"prompts": "redis_server"},
    "verifiers": {
        "box": "code pool",
        "code": "pool check_outcomes verifier",
        "environments": "box functions math pool",
        "functions": "pool check_outcomes registry",
        "instructions": "pool check_outcomes verifier",
        "judge": "check_outcomes verifier",
        "math": "pool check_outcomes verifier",
        "pool": "check_outcomes",
        "text": "math pool check_outcomes verifier",
    },
    "deploy": {
        "cluster": "control credentials",
        "control": "credentials view",
        "data_sets": "control",
        "evaluation": "arguments control data_sets demo preflight verify view wiring",
        "grafana": "view",
        "plan": "arguments cluster control preflight view",
        "preflight": "arguments cluster credentials demo processes supervision tracking view wiring",
        "processes": "cluster credentials tracking view wiring",
        "report": "control view",
        "supervision": "cluster control credentials processes tracking view wiring",
        "tracking": "view",
        "verify": "arguments control view",
    },
}
"""The imports of each sub-package from its own folder: other sub-packages and files."""


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


def imports(path: Path) -> set[str]:
    """Modules that a file imports, also inside functions and for type checking."""
    found: set[str] = set()
    for node in nodes_of(path):
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


def import_graph() -> dict[str, set[str]]:
    """For each file the files that it imports, by their module names."""
    names = {module_name(path): path for path in code_files()}
    return {name: {used for used in imports(path) if used in names} - {name} for name, path in names.items()}


def test_no_import_cycle() -> None:
    graph = import_graph()
    assert set(TopologicalSorter(graph).static_order()) == set(graph)


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_only_what_the_table_allows(folder: str) -> None:
    arrows: dict[str, set[str]] = {}
    for name, used_names in import_graph().items():
        for used in used_names:
            if name.startswith(f"olmorl.{folder}.") and used.startswith(f"olmorl.{folder}."):
                room, other = name.split(".")[2], used.split(".")[2]
                if room != other:
                    arrows.setdefault(room, set()).add(other)
    of_rooms = {room: others for room, others in arrows.items() if (ROOT / folder / room).is_dir()}
    assert of_rooms == {room: set(others.split()) for room, others in ROOMS[folder].items() if others}
    assert set(TopologicalSorter(arrows).static_order()) >= set(arrows), "a cycle raises CycleError"


def test_every_code_folder_is_packaged_and_linked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    find = project["tool"]["setuptools"]["packages"]["find"]
    packages = set(find_namespace_packages(find["where"][0], include=find["include"]))
    folders = {path.parent.relative_to(ROOT) for path in code_files()}
    folders |= {
        p.parent.relative_to(ROOT)
        for kind in ("toml", "lua", "json", "html", "css", "js")
        for f in FOLDERS
        for p in (ROOT / f).rglob(f"*.{kind}")
    }
    for folder in folders:
        package = ".".join(folder.parts if folder.parts[0] == "olmorl" else ("olmorl", *folder.parts))
        assert package in packages, f"{folder} would miss the wheel: setuptools does not find {package}"
    for folder in FOLDERS:
        link = ROOT / "olmorl" / folder
        assert link.is_symlink() and link.resolve() == ROOT / folder
        assert not (ROOT / folder / "__init__.py").exists()
