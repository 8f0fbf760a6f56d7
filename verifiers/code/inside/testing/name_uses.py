"""Finds how a test uses names: the names it reads, binds, and imports from the program."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

WHOLE, CALLED, GIVEN = "", "()", "(x)"
"""Uses of a name other than reading an attribute. GIVEN is a call with an argument that is no literal."""
PROGRAM_MODULES = frozenset(
    (
        "solution", "solutions", "your_solution", "my_solution", "program", "your_program", "my_program", "module",
        "your_module", "my_module", "main", "candidate", "submission", "answer", "implementation", "student",
        "code_file", "__main__",
    )
)  # fmt: skip
"""Module names under which tests import the program."""

_CAPTURES = frozenset(
    ("stdout", "stderr", "stdin", "StringIO", "redirect_stdout", "redirect_stderr", "capsys", "capfd")
)


class NameUses:
    """All uses of names in one test, found in one pass."""

    def __init__(self, test: str, tree: ast.AST) -> None:
        self.read: dict[str, set[str]] = {}
        """For each name that is read, its uses: attribute names, WHOLE, CALLED, GIVEN."""
        table = symtable.symtable(test, "test.py", "exec")
        self.bound = {
            symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
        }
        """Names that the test binds at module level."""
        self._global = set(_global(table, True))
        self.imported: set[str] = set()
        """Names that the test imports from the program."""
        self.methods: set[str] = set()
        """Names of attributes that are called."""
        seen: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._call(node, seen)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._note(node.value, node.attr, seen)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in seen:
                self.read.setdefault(node.id, set()).add(WHOLE)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and of_program(node):
                self.imported |= {(alias.asname or alias.name).split(".")[0] for alias in node.names} - {"*"}
        self.bound -= self.imported

    @property
    def free(self) -> set[str]:
        """Names that are read and that the test does not bind."""
        return (self._global | self.imported) - self.bound

    def _call(self, node: ast.Call, seen: set[int]) -> None:
        if isinstance(node.func, ast.Attribute):
            self.methods.add(node.func.attr)
        if not isinstance(node.func, ast.Name):
            return
        self._note(node.func, CALLED, seen)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if any(isinstance(part, ast.Name) for argument in given for part in ast.walk(argument)):
            self.read[node.func.id].add(GIVEN)

    def _note(self, name: ast.Name, use: str, seen: set[int]) -> None:
        self.read.setdefault(name.id, set()).add(use)
        seen.add(id(name))


def of_program(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import statement imports the program."""
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or node.module in PROGRAM_MODULES
    return all(alias.name in PROGRAM_MODULES for alias in node.names)


def _global(table: symtable.SymbolTable, outermost: bool) -> Iterator[str]:
    """Names that a scope and its inner scopes read from module level."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (outermost or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global(inner, False)


def watched_streams(test: str, uses: NameUses) -> list[str]:
    """The streams and functions that a test watches, judged by its text: "streams", "print", "input"."""
    found = ["streams"] if any(name in test for name in _CAPTURES) else []
    replaced = "patch" in test or "setattr" in test or "builtins" in uses.bound | uses.read.keys()
    found += [name for name in ("print", "input") if replaced and name in test]
    return [*found, "streams"] if "input" in found and "streams" not in found else found
