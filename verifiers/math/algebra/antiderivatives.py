"""Compares antiderivatives: `\\ln(2x) + C` equals `\\ln x + C`, because `C` includes any constant."""

from __future__ import annotations

from itertools import pairwise

from olmorl.verifiers.math.algebra.arithmetic import Arithmetic, Number, Rows
from olmorl.verifiers.math.algebra.equality import agree
from olmorl.verifiers.math.algebra.evaluate import TreeValues
from olmorl.verifiers.math.algebra.points import Point, points
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, contains, names

_LETTERS = ("C", "c", "K", "k")
"""Letters of the constant. A label has the first."""
_MIN_POINTS = 3


def same_antiderivative(label: Node, answer: Node) -> bool:
    """Whether two formulas of the form `F + C` differ by a constant, in lower-case variables."""
    one = _without_constant(label, "C")
    others = (_without_constant(answer, letter) for letter in _LETTERS) if one is not None else ()
    other = next((found for found in others if found is not None), None)
    if one is None or other is None:
        return False
    variables = names(one) | names(other)
    if not names(one) or not names(other) or not all(map(str.islower, variables)):
        return False
    apart = Node("sum", None, (one, Node("negative", None, (other,))))
    tried = [(point, _is_real(one, point), _is_real(other, point)) for point in points(variables, one, other)]
    if contains(one, "call", "abs") != contains(other, "call", "abs") and any(
        left != right for _, left, right in tried
    ):
        return False
    usable = [point for point, left, right in tried if left and right]
    return len(usable) >= _MIN_POINTS and all(_alike(apart, here, there) for here, there in pairwise(usable))


def _without_constant(node: Node, letter: str) -> Node | None:
    """`F` of `F + C`; None for any other form."""
    if node.kind != "sum":
        return None
    constant = Node("name", letter)
    rest = tuple(part for part in node.parts if part not in (constant, Node("negative", None, (constant,))))
    if len(rest) != len(node.parts) - 1 or letter in set().union(*map(names, rest)):
        return None
    return Node("sum", None, rest) if len(rest) > 1 else rest[0]


def _is_real(node: Node, point: Point) -> bool:
    evaluator = TreeValues(Arithmetic(), point)
    try:
        evaluator.value(node)
    except (ArithmeticError, Unreadable, ValueError):
        return False
    return not evaluator.strayed


def _alike(node: Node, here: Point, there: Point) -> bool:
    def values(arithmetic: Arithmetic) -> tuple[Number | Rows, Number | Rows]:
        return TreeValues(arithmetic, here).value(node), TreeValues(arithmetic, there).value(node)

    try:
        return agree(values)
    except (ArithmeticError, Unreadable, ValueError):
        return False
