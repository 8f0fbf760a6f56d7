"""Vectors written in unit vectors, `2i - 3j`, with or without arrows or hats."""

from __future__ import annotations

from fractions import Fraction

from olmorl.verifiers.math.algebra.evaluate import BASIS
from olmorl.verifiers.math.algebra.tree import Node, contains

_NUMBERED = ("e_1", "e_2", "e_3")
_UNITS = dict(zip("ijk", BASIS, strict=True)) | dict(zip(_NUMBERED, BASIS, strict=True))
_ZERO = Node("number", (Fraction(0), None))


def meant(label: Node, answer: Node) -> tuple[Node, Node]:
    """Both as columns of three, if one of them is written in unit vectors. Else both unchanged."""
    marked = [contains(node, "name", *BASIS) for node in (label, answer)]
    columns = [_column(node) is not None for node in (label, answer)]
    if any(marked) or (any(columns) and any(map(_in_letters, (label, answer)))):
        return _vector(label), _vector(answer)
    return label, answer


def _in_letters(node: Node) -> bool:
    """Whether the unit vectors are i, j and k, or numbered."""
    named = contains(node, "constant", "i") and contains(node, "name", "j", "k")
    return named or contains(node, "name", *_NUMBERED)


def _vector(node: Node) -> Node:
    return _column(node) or _renamed(node)


def _column(node: Node) -> Node | None:
    """Two or three coordinates as a column of three."""
    tuples = node.kind == "list" and node.value in ("()", "[]")
    if not (tuples or (node.kind == "matrix" and 1 in (node.value, len(node.parts) // node.value))):
        return None
    return Node("matrix", 1, (*node.parts, _ZERO)[:3]) if len(node.parts) in (2, 3) else None


def _renamed(node: Node) -> Node:
    """With i, j and k as unit vectors."""
    if (node.kind == "name" or (node.kind == "constant" and node.value == "i")) and node.value in _UNITS:
        return Node("name", _UNITS[node.value])
    return node._replace(parts=tuple(map(_renamed, node.parts)))
