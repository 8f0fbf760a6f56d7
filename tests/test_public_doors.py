"""Other projects are used by what they document. What has no documented door is in a `compat.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax_trees import parse, tree_of

ROOT = Path(__file__).parents[1]
OWN_PACKAGES = ("olmorl", "__future__")
FOLDERS = ("actors", "deploy", "learner", "queues", "verifiers")
INTERPRETER = ROOT / "verifiers" / "code" / "inside"
"""These files run foreign programs in a sandbox. They set up Python itself for them: its streams, exit and modules."""
DOCUMENTED = {"os._exit", "os.environ", "sys.unraisablehook", "sys.*"}
"""Names that Python documents for this use. `sys.*` is a standard stream, set by its name."""
OF_TUPLES = {"_replace", "_asdict", "_make", "_fields"}
"""Methods of every named tuple."""


def product_files() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + [*(ROOT / "olmorl").glob("*.py")]
    return sorted(path for path in files if path.name != "compat.py" and INTERPRETER not in path.parents)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.AST) -> list[str]:
    """The names of `a.b[...].c(...)`: a, b, c. Empty if it does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return [*before, node.attr] if before else []
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return dotted(node.func) if isinstance(node, ast.Call) else []


def foreign_names(tree: ast.Module) -> dict[str, str]:
    """The names that a file imports from elsewhere, and what each stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            [target, *_], call = node.targets, node.value
            is_import = dotted(call.func)[-1:] == ["import_module"] and isinstance(call.args[0], ast.Constant)
            if is_import and isinstance(target, ast.Name):
                names[target.id] = ast.literal_eval(call.args[0])
    return {name: origin for name, origin in names.items() if origin.partition(".")[0] not in OWN_PACKAGES}


def own_names(trees: list[ast.Module]) -> set[str]:
    """The private attributes that the product gives its own classes."""
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node)[:1] == ["self"]:
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def written(node: ast.AST) -> Iterator[ast.AST]:
    """What a statement or a call writes into."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call) and dotted(node.func)[-1:] in (["setattr"], ["delattr"]) and node.args:
        yield ast.Attribute(node.args[0], "*")


def is_computed_module(node: ast.AST) -> bool:
    """`sys.modules[name] = module`, as Python's documentation loads a file. A fixed name is another one's module."""
    is_item = isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant)
    return is_item and dotted(node) == ["sys", "modules"]


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The faults of an import."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    for name in (f"{module}.{alias.name}".strip(".") for alias in node.names):
        if name.partition(".")[0] not in OWN_PACKAGES and any(map(is_private, name.split("."))):
            yield f"imports {name}"
        if name.startswith("unittest.mock"):
            yield "patches with unittest.mock"


def used(node: ast.Attribute, foreign: dict[str, str], own: set[str]) -> Iterator[str]:
    """The fault of a private attribute that is not the product's own."""
    path = dotted(node)
    origin = ".".join([foreign.get(path[0], path[0]), *path[1:]]) if path else ""
    is_own = node.attr in own | OF_TUPLES and not (path and path[0] in foreign)
    if not is_own and origin not in DOCUMENTED:
        yield f"uses {'.'.join(path) or node.attr}"


def changed(node: ast.AST, foreign: dict[str, str]) -> Iterator[str]:
    """The faults of a statement or a call that writes into a foreign module or class."""
    for target in written(node):
        path = dotted(target)
        if path[:1] and path[0] in foreign and len(path) + isinstance(target, ast.Subscript) > 1:
            origin = ".".join([foreign[path[0]], *path[1:]])
            if origin not in DOCUMENTED and not is_computed_module(target):
                yield f"writes into {'.'.join(path)}"


def faults(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """The lines that reach into another project."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        found = [*changed(node, foreign)]
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += imported(node)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            found += used(node, foreign, own)
        yield from ((getattr(node, "lineno", 0), fault) for fault in found)


def test_the_product_reaches_into_no_other_project_outside_compat() -> None:
    trees = {path: tree_of(path) for path in product_files()}
    own = own_names(list(trees.values()))
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}" for path, tree in trees.items() for line, fault in faults(tree, own)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("from ray._private import node", "imports ray._private.node"),
        ("from deepspeed.sequence.layer import _SeqAllToAll", "imports deepspeed.sequence.layer._SeqAllToAll"),
        ("import torch._dynamo", "imports torch._dynamo"),
        ("from unittest.mock import patch", "patches with unittest.mock"),
        ("import torch\ntorch._foreach_add_([], [])", "uses torch._foreach_add_"),
        ("def f(weight):\n    return weight._hp_mapping", "uses weight._hp_mapping"),
        ("def f(self):\n    self.zero._reassign_all()", "uses self.zero._reassign_all"),
        (
            "from importlib import import_module\nd = import_module('deepspeed')\nd.groups.GROUP = 1",
            "writes into d.groups.GROUP",
        ),
        ("import signal\nsignal.signal = print", "writes into signal.signal"),
        ("from vllm.v1.engine import utils\nutils.get_mp_context = print", "writes into utils.get_mp_context"),
        ("import sys\nsys.modules['torch'] = None", "writes into sys.modules"),
        ("from ray import node\nsetattr(node.Node, 'start', print)", "writes into node.Node.*"),
        ("import sys\ndel sys.modules['torch']", "writes into sys.modules"),
    ],
)
def test_it_sees(code: str, fault: str) -> None:
    assert fault in [text for _, text in faults(parse(code), set())]


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['A'] = '1'\nos._exit(1)",
        "import sys\nsys.modules[name] = module",
        "import numpy as np\nfound = np.zeros(3)\nfound[0] = 1",
        "from olmorl.deploy.cluster import compat\ncompat.x = 1",
        "class A:\n    def f(self):\n        self._x = 1\n        return self._x",
        "def f(row):\n    return row._replace(x=1)",
    ],
)
def test_it_lets_pass(code: str) -> None:
    tree = parse(code)
    assert not list(faults(tree, own_names([tree])))
