"""Counts the assertions of a test that check nothing: in a loop over an empty answer, or in a function not called."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

LOOP = "__loop__"
_SETTLING = ("assertEqual", "ListEqual", "CountEqual", "DictEqual", "SetEqual", "assertFalse", "assertIs", "IsNone")


class Coverage(ast.NodeTransformer):
    """Counts the turns of each loop with an assertion, unless another assertion says what the loop goes over."""

    def __init__(self, tree: ast.AST) -> None:
        self._functions: dict[str, set[int]] = {}
        """The functions with an assertion, and their lines."""
        self.turns: list[int | None] = []
        """For each loop, 0 if it had no turn; None if it was never reached."""
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in functions * 2:  # one may call another
            if self._judges(node):
                line = min(each.lineno for each in (node, *node.decorator_list))
                self._functions.setdefault(node.name, set()).add(line)
        self._bodies = [
            _lines(node, self._judges) for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith)
        ]
        self._settling = [node for node in ast.walk(tree) if _settles(node)]
        self.visit(tree)

    def has_assertion(self, code: CodeType | None) -> bool:
        """Whether it is the code of a function of the test with an assertion."""
        return code is not None and code.co_firstlineno in self._functions.get(code.co_name, ())

    def skips(self, line: int) -> bool:
        """Whether an error at a line, which ends the innermost `with`, keeps an assertion in it from running."""
        return line <= max((each for each in self._bodies if each[0] <= line <= each[1]), default=(0, 0, 0))[2]

    def visit_For(self, node: ast.For) -> ast.AST:
        if self._judges(node):
            node.iter = self._counted(node.iter, node)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        if self._judges(node):
            one = ast.Call(ast.Name("filter", ast.Load()), [ast.Constant(None), ast.List([node.test], ast.Load())], [])
            turn = ast.Starred(self._counted(ast.copy_location(one, node.test), node), ast.Load())
            node.test = ast.fix_missing_locations(ast.copy_location(ast.List([turn], ast.Load()), node.test))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == "all":  # true of nothing
            for loop in [loop for each in node.args for loop in getattr(each, "generators", ())[:1]]:
                loop.iter = self._counted(loop.iter, node)
        return self.generic_visit(node)

    def _judges(self, tree: ast.AST) -> bool:
        """Whether code asserts something that can be true."""
        return any(
            _method(node).startswith("assert")
            or (isinstance(node, ast.Assert) and not (isinstance(node.test, ast.Constant) and not node.test.value))
            or (isinstance(node, ast.Call) and ast.unparse(node.func) in self._functions)
            for node in ast.walk(tree)
        )

    def _counted(self, items: ast.expr, loop: ast.AST) -> ast.expr:
        inside = set(ast.walk(loop))
        settled = {part for node in self._settling if node not in inside for part in _parts(node)}
        # A loop over neighbours has no turn for a single item.
        if settled & _parts(items) or any(isinstance(each, ast.BinOp | ast.Slice) for each in ast.walk(items)):
            return items
        self.turns.append(None)
        parts: list[ast.expr] = [ast.Name("iter", ast.Load()), items]
        keywords: list[ast.keyword] = []
        if isinstance(items, ast.Call) and ast.unparse(items.func) in ("zip", "filter"):
            parts, keywords = [items.func, *items.args], items.keywords
        call = ast.Call(ast.Name(LOOP, ast.Load()), [ast.Constant(len(self.turns) - 1), *parts], keywords)
        return ast.fix_missing_locations(ast.copy_location(call, items))

    def loop(self, number: int, joined: Any, *items: Any, **options: Any) -> Iterator[Any]:
        """Go over `iter`, `zip` or `filter` of the items. No turn is right where all parts of a `zip` are empty."""
        if not (items[1:] and all(type(each) in (tuple, list, dict, set, str) and not each for each in items)):
            self.turns[number] = self.turns[number] or 0
        for item in joined(*items, **options):
            self.turns[number] = 1
            yield item


def _lines(node: ast.With | ast.AsyncWith, judges: Callable[[ast.AST], bool]) -> tuple[int, int, int]:
    """The first and the last line of a body, and the last line of its last statement with an assertion."""
    asserted = [each.end_lineno or 0 for each in node.body if judges(each)]
    return node.body[0].lineno, node.end_lineno or 0, max(asserted, default=0)


def _settles(node: ast.AST) -> bool:
    """Whether an expression says what something is, and not just what it is like."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], (ast.Eq, ast.Is))
    return (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)) or _method(node).endswith(_SETTLING)


def _method(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _parts(tree: ast.AST) -> set[str]:
    """The variables and calls in an expression, as text."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {
        ast.unparse(calls.get(id(node), node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id)
    }
