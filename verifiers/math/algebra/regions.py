"""Sets of real numbers, from intervals, inequalities in one variable, unions and set builders."""

from __future__ import annotations

from fractions import Fraction
from functools import cmp_to_key
from math import ceil, floor, inf
from typing import NamedTuple

from flint import acb, arb, ctx, fmpq

from olmorl.verifiers.math.algebra import inequalities
from olmorl.verifiers.math.algebra.arithmetic import Number, is_real
from olmorl.verifiers.math.algebra.claims import is_name
from olmorl.verifiers.math.algebra.evaluate import START_BITS, value
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, names, replaced

MAX_PIECES = 32
MAX_WHOLE = 64
"""The most whole numbers in a set that is written out."""


class Piece(NamedTuple):
    """The numbers from `start` to `end`, each of them included unless open. Endless ones end at a float's infinity."""

    start: Number
    end: Number
    open_start: bool
    open_end: bool


class Region(NamedTuple):
    """Disjoint pieces in order, and the variable they were written in, if any."""

    pieces: tuple[Piece, ...]
    name: str = ""


_LINE = Piece(-inf, inf, True, True)
_ZERO = fmpq(0)
_ABOVE, _BELOW = Piece(_ZERO, inf, True, True), Piece(-inf, _ZERO, True, True)
_HALVES = {
    "R": (_LINE,), "R^+": (_ABOVE,), "R_+": (_ABOVE,), "R_>0": (_ABOVE,), "R^-": (_BELOW,), "R_-": (_BELOW,),
    "R_<0": (_BELOW,), "R_ge0": (_ABOVE._replace(open_start=False),), "R_le0": (_BELOW._replace(open_end=False),),
    "R^*": (_BELOW, _ABOVE), "R^times": (_BELOW, _ABOVE),
}  # fmt: skip
"""Named sets of real numbers, as the grammar names them."""
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


def region(node: Node) -> Region | None:
    """The set that a tree describes; None when it describes no union of intervals."""
    try:
        return _region(node)
    except (Unreadable, ArithmeticError, TypeError, ValueError):
        return None


def is_region(node: Node) -> bool:
    """Whether a tree must be a set of numbers: `(1, 2)` may be a point, but `[1, 2)` may not."""
    if node.kind == "relation":
        return any(operator in _FLIPPED for operator in node.value) or (
            (node.value[-1] == "in" or (node.value == ("=",) and _is_set_name(node.parts[0])))
            and is_region(node.parts[-1])
        )
    if node.kind == "list" and node.value in ("", "or", "and"):
        return bool(node.parts) and all(map(is_region, node.parts))
    half_open = node.kind == "list" and node.value in ("[)", "(]")
    unbounded = node.kind == "list" and node.value == "()" and len(node.parts) == 2 and any(map(endless, node.parts))
    return half_open or unbounded or node.kind in ("union", "intersection", "difference", "builder", "set")


def _is_set_name(node: Node) -> bool:
    return node.kind == "name" and node.value[0].isupper()


def contradicts_itself(node: Node) -> bool:
    """Whether conditions with "and" between them exclude each other: `x < 1 and x > 3`."""
    if node.kind != "list" or node.value != "and":
        return False
    parts = [found for found in map(region, node.parts) if found is not None]
    return len(parts) == len(node.parts) and not _folded("intersection", parts).pieces


def same_region(label: Region, answer: Region, tolerance: float) -> bool:
    """Whether two sets are equal, up to the tolerance in their ends, and written in the same variable."""
    if label.name and answer.name and label.name != answer.name:
        return False
    return len(label.pieces) == len(answer.pieces) and all(
        one[2:] == other[2:] and _close(one.start, other.start, tolerance) and _close(one.end, other.end, tolerance)
        for one, other in zip(label.pieces, answer.pieces, strict=True)
    )


def whole_numbers(node: Node) -> list[int] | None:
    """The whole numbers of a bounded set, `{n in Z : n^2 < 10}` or `-3 <= n <= 3, n in Z`. None for any other set."""
    if node.kind == "builder":
        head, condition = node.parts
    elif node.kind == "list" and node.value in ("", "and") and len(node.parts) == 2:
        condition, head = node.parts
    else:
        return None
    in_whole = (
        head.kind == "relation" and head.value == ("in",) and head.parts[1] in (Node("set", "Z"), Node("set", "N"))
    )
    found = region(condition) if in_whole else None
    if (
        found is None
        or not found.pieces
        or isinstance(found.pieces[0].start, float)
        or isinstance(found.pieces[-1].end, float)
    ):
        return None
    first, last = inequalities.middle(found.pieces[0].start), inequalities.middle(found.pieces[-1].end)
    if last - first > MAX_WHOLE:
        return None
    lowest = 1 if head.parts[1].value == "N" else floor(first) - 1
    every = (fmpq(number) for number in range(lowest, ceil(last) + 2))
    return [
        int(number.p)
        for number in every
        if any(_common(piece, Piece(number, number, False, False)) for piece in found.pieces)
    ]


def endless(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for anything else."""
    if node.kind == "negative":
        return -endless(node.parts[0])
    return int(node.kind == "constant" and node.value == "infinity")


def _region(node: Node) -> Region:
    if node.kind == "relation":
        return _solutions(node)
    if node.kind == "list":
        return _listed(node)
    if node.kind == "set" and node.value in _HALVES:
        return Region(_HALVES[node.value])
    if node.kind == "builder":
        return _built(node)
    if node.kind in ("union", "intersection", "difference"):
        return _combined(node.kind, *map(_region, node.parts))
    if node.kind == "sum" and len(node.parts) == 2 and node.parts[1].kind == "negative":
        return _combined("difference", _region(node.parts[0]), _region(node.parts[1].parts[0]))
    raise Unreadable("not a set of numbers")


def _listed(node: Node) -> Region:
    """An interval, a set of numbers, or several conditions."""
    if node.value in ("()", "[]", "[)", "(]") and len(node.parts) == 2:
        start, end = map(_end, node.parts)
        if _order(start, end) >= 0:
            raise Unreadable("an interval that ends before it starts")
        return Region((Piece(start, end, node.value[0] == "(", node.value[1] == ")"),))
    if node.value == "{}" and node.parts and all(map(is_region, node.parts)):
        return _folded("intersection", list(map(_region, node.parts)))
    if node.value == "{}":
        return Region(_united([Piece(point, point, False, False) for point in map(_end, node.parts)]))
    if node.value not in ("", "or", "and"):
        raise Unreadable("a tuple")
    parts = [_region(part) for part in node.parts]
    if node.value == "or":
        return _folded("union", parts)
    both = _folded("intersection", parts)
    # A comma, or an "and" in a label, between conditions that exclude each other can only mean "or".
    return both if both.pieces else _folded("union", parts)


def _built(node: Node) -> Region:
    head, condition = node.parts
    if head.kind == "relation" and head.value == ("in",):
        return _combined("intersection", _region(head.parts[1]), _region(condition))
    return _region(condition)


def _solutions(node: Node) -> Region:
    """The solutions of a chain of inequalities that are linear in one variable."""
    if node.value == ("=",) and _is_set_name(node.parts[0]):
        return _region(node.parts[1])
    if node.value == ("in",):
        inner = _region(node.parts[1])
        return Region(inner.pieces, _variable(node.parts[0]))
    links = zip(node.parts, node.value, node.parts[1:], strict=False)
    return _folded("intersection", [_half_line(*link) for link in links])


def _variable(node: Node) -> str:
    if node.kind != "name":
        raise Unreadable("not a variable")
    return str(node.value)


def _half_line(left: Node, operator: str, right: Node) -> Region:
    """Where `left operator right` holds."""
    variable = _unknown(left, right)
    name = str(variable.value) if variable.kind == "name" else repr(variable)
    if operator not in _FLIPPED:
        raise Unreadable("no inequality")
    if endless(left) or endless(right):
        return Region((_LINE,), name)
    difference = Node("sum", None, (left, Node("negative", None, (right,))))
    try:
        return Region(_pieces(inequalities.solve(difference, operator, variable)), name)
    except Unreadable:
        return Region(_linear(difference, operator, variable), name)


def _unknown(left: Node, right: Node) -> Node:
    """The subject of an inequality: its only variable, or a side that is a name, such as `f(x)`."""
    for one, other in ((left, right), (right, left)):
        if is_name(one) and one.kind in ("name", "call") and not names(other):
            return one
    variables = names(left) | names(right)
    if len(variables) != 1:
        raise Unreadable("not an inequality in one variable")
    (name,) = variables
    return Node("name", name)


def _pieces(solution: inequalities.Solution) -> tuple[Piece, ...]:
    bounds = (-inf, *solution.ends, inf)
    wholes = zip(bounds, bounds[1:], solution.between, strict=False)
    open_pieces = [Piece(start, end, True, True) for start, end, holds in wholes if holds]
    points = [
        Piece(end, end, False, False) for end, holds in zip(solution.ends, solution.at_ends, strict=True) if holds
    ]
    return _united(open_pieces + points)


def _linear(difference: Node, operator: str, variable: Node) -> tuple[Piece, ...]:
    """A half line, or the line without a point: the difference is linear, with coefficients that may be irrational."""
    first, second, third = (_at(difference, variable, point) for point in (0, 1, 2))
    slope = _minus(second, first)
    if not _order(second, first) or _order(_minus(third, second), slope):
        raise Unreadable("not linear")
    with ctx.workprec(2 * START_BITS):
        end = -first / slope
    if _order(slope, fmpq(0)) < 0:
        operator = _FLIPPED[operator]
    if operator == "!=":
        return Piece(-inf, end, True, True), Piece(end, inf, True, True)
    opened = not operator.endswith("=")
    return (Piece(-inf, end, True, opened) if operator[0] == "<" else Piece(end, inf, opened, True),)


def _at(node: Node, variable: Node, point: int) -> Number:
    """The value with a number in the place of the variable."""
    return _real_value(replaced(node, variable, Node("number", (Fraction(point), None))))


def _end(node: Node) -> Number:
    if sign := endless(node):
        return sign * inf
    if names(node):
        raise Unreadable("an end that is a variable")
    return _real_value(node)


def _real_value(node: Node) -> Number:
    number = value(node)
    if isinstance(number, tuple) or not is_real(number):
        raise Unreadable("not a real number")
    return number


# --- ends ---------------------------------------------------------------------------------------


def _minus(one: Number, other: Number) -> Number:
    with ctx.workprec(2 * START_BITS):
        return one - other if isinstance(one, fmpq) and isinstance(other, fmpq) else acb(one) - acb(other)


def _order(one: Number, other: Number) -> int:
    """-1, 0 or 1: whether the first end is below the other, the same, or above it."""
    if any(isinstance(end, float) for end in (one, other)):
        sides = [0.0 if not isinstance(end, float) else end for end in (one, other)]
        return (sides[0] > sides[1]) - (sides[0] < sides[1])
    difference = _minus(one, other)
    if isinstance(difference, fmpq):
        return int(difference > 0) - int(difference < 0)
    return int(bool(difference.real > 0)) - int(bool(difference.real < 0))


def _close(label: Number, answer: Number, tolerance: float) -> bool:
    """Whether two ends are the same; with a decimal, whether they are near."""
    if not _order(label, answer):
        return True
    if isinstance(label, float) or isinstance(answer, float) or not tolerance:
        return False
    return bool(abs(_minus(label, answer)) <= arb(tolerance * (1 + 1e-9)) * max(abs(acb(label)), abs(acb(answer))))


# --- operations ---------------------------------------------------------------------------------


def _folded(kind: str, regions: list[Region]) -> Region:
    result = regions[0]
    for other in regions[1:]:
        result = _combined(kind, result, other)
    return result


def _combined(kind: str, one: Region, other: Region) -> Region:
    if one.name and other.name and one.name != other.name:
        raise Unreadable("two variables")
    name = one.name or other.name
    if kind == "union":
        return Region(_united([*one.pieces, *other.pieces]), name)
    pieces = other.pieces if kind == "intersection" else _complement(other.pieces)
    return Region(_united([both for a in one.pieces for b in pieces if (both := _common(a, b))]), name)


def _united(pieces: list[Piece]) -> tuple[Piece, ...]:
    """In order, with pieces joined that touch."""
    if len(pieces) > MAX_PIECES:
        raise Unreadable("too many pieces")
    merged: list[Piece] = []
    for piece in sorted(pieces, key=cmp_to_key(_earlier)):
        last = merged[-1] if merged else None
        if last is None or _apart(last, piece):
            merged.append(piece)
        elif (beyond := _order(piece.end, last.end)) > 0 or (not beyond and last.open_end):
            merged[-1] = last._replace(end=piece.end, open_end=piece.open_end)
    return tuple(merged)


def _earlier(one: Piece, other: Piece) -> int:
    return _order(one.start, other.start) or int(one.open_start) - int(other.open_start)


def _apart(one: Piece, other: Piece) -> bool:
    """Whether there is a number between two pieces in order."""
    gap = _order(one.end, other.start)
    return gap < 0 or (not gap and one.open_end and other.open_start)


def _common(one: Piece, other: Piece) -> Piece | None:
    """The intersection."""
    later = max((one, other), key=cmp_to_key(_earlier))
    ends = _order(one.end, other.end)
    open_end = one.open_end or other.open_end if not ends else (one if ends < 0 else other).open_end
    found = Piece(later.start, one.end if ends < 0 else other.end, later.open_start, open_end)
    length = _order(found.start, found.end)
    empty = length > 0 or (not length and (found.open_start or found.open_end))
    return None if empty else found


def _complement(pieces: tuple[Piece, ...]) -> list[Piece]:
    gaps, start, open_start = [], -inf, True
    for piece in pieces:
        gap = _order(start, piece.start)
        if gap < 0 or (not gap and not open_start and piece.open_start):
            gaps.append(Piece(start, piece.start, open_start, not piece.open_start))
        start, open_start = piece.end, not piece.open_end
    if _order(start, inf) < 0:
        gaps.append(Piece(start, inf, open_start, True))
    return gaps
