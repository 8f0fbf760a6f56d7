"""What a garbage collection does while a file is parsed does not reach the parser."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from tests.syntax_trees import tree_of


class Cycle:
    """Parses when it is collected, deeper in the stack, as the log of a lost task does."""

    num_collected = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cycle.num_collected += 1
        self._parse(40)

    def _parse(self, depth: int) -> ast.AST:
        return self._parse(depth - 1) if depth else ast.parse("1 + 1")


def test_garbage_that_parses_does_not_disturb_a_tree() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    try:
        for _ in range(5):
            Cycle()
            assert isinstance(tree_of(Path(ast.__file__)), ast.Module)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert Cycle.num_collected == 5


def test_every_other_test_parses_by_it() -> None:
    here = Path(__file__).parent
    own = [here / "syntax_trees.py", Path(__file__)]
    found = [path for path in here.rglob("*.py") if "ast.parse(" in path.read_text("utf-8") and path not in own]
    assert found == []
