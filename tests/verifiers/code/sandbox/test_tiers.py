"""The sandbox is sent every module that runs in it, each after its imports, and these import only Python besides."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from olmorl.verifiers.code.sandbox import tiers
from tests.syntax_trees import nodes_of, parse

PACKAGE = "olmorl.verifiers.code.inside"
FOLDER = Path(tiers.__file__).parent.parent / "inside"
SENT_APART = {"boot", "isolation.drop_root"}
"""Modules that run before the others are sent."""


def test_every_module_inside_is_sent() -> None:
    modules = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py")}
    assert set(tiers.SENT) | SENT_APART == modules
    assert len(set(tiers.SENT)) == len(tiers.SENT)


def test_a_module_inside_imports_only_python_and_modules_sent_before_it() -> None:
    for index, module in enumerate(tiers.SENT):
        known = {f"{PACKAGE}.{name}" for name in tiers.SENT[:index]}
        for node in ast.walk(parse(tiers.source(module))):
            if isinstance(node, ast.ImportFrom):
                used = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                used = {alias.name for alias in node.names}
            else:
                continue
            assert used & known or {name.split(".")[0] for name in used} <= sys.stdlib_module_names, (module, used)


def test_the_rooms_inside_depend_on_each_other_one_way() -> None:
    below = {"isolation": {"isolation"}, "bridge": {"bridge"}, "testing": {"testing", "bridge"}}
    for room, allowed in below.items():
        for path in (FOLDER / room).glob("*.py"):
            for node in nodes_of(path):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                    used = f"{node.module}.".removeprefix(f"{PACKAGE}.").split(".")[0]
                    assert used in allowed, f"{path.name} imports {node.module}"
