"""Reads the claim of a relation: `x = 2` is about x, `2 + 3 = 5` is a value, `y = 2x + 1` is a value and a line."""

from __future__ import annotations

from typing import NamedTuple

from flint import acb, arb, fmpq

from olmorl.verifiers.math.algebra.arithmetic import Arithmetic, Number, is_real, magnitude
from olmorl.verifiers.math.algebra.equality import agree, same_value
from olmorl.verifiers.math.algebra.evaluate import TreeValues, value
from olmorl.verifiers.math.algebra.points import Point, points
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, names

_EQUALITIES = {"=", "~"}
_NAMING = ("triangle", "prime", "nabla", "max", "min", "lim", "int", "sum", "prod")


class Claim(NamedTuple):
    """`name = value`: the value that an answer gives, and the name that it gives it to."""

    name: Node | None
    value: Node
    approximation: Node | None = None
    equation: tuple[Node, Node] | None = None
    """Both sides, where it is an equation."""
    statement: tuple[Node, ...] = ()
    """All sides of an equation of plain numbers, such as `2^3 = 8`: it says more than its value."""


def claim(node: Node) -> Claim:
    """Read `x = 2`, `2 = x`, `x = 1 + 1 = 2`, `x \\in \\{2\\}`, `2 \\approx 1.99`, or a value."""
    if node.kind != "relation":
        return Claim(None, node)
    if node.value == ("in",) and is_name(node.parts[0]):
        return Claim(node.parts[0], node.parts[1])
    if node.parts[0].kind == "text" and len(node.parts) == 2 and node.value[0] in (":", "="):
        return claim(node.parts[1])
    if node.value.count("=") == 1 and set(node.value) == {":", "="}:
        return _ratio(node, node.value.index("="))
    if not set(node.value) <= _EQUALITIES:
        return Claim(None, node)
    return _equation(node)


def _equation(node: Node) -> Claim:
    """A chain of equalities. The sides after the first `\\approx` are approximations."""
    exact = next((index for index, operator in enumerate(node.value) if operator == "~"), len(node.value))
    sides, rest = node.parts[: exact + 1], node.parts[exact + 1 :]
    near = rest[-1] if rest else None
    if len(sides) == 1:
        named = near is not None and is_name(sides[0])
        return Claim(sides[0], near) if named and near else Claim(None, sides[0], near)
    first, last = sides[0], sides[-1]
    if last.kind == "quantity" and last.value.startswith("mod ") and not is_name(first):
        return Claim(None, last, near)
    if is_name(first) or (first.kind == "call" and first.value == "abs" and _is_complex(first.parts[0])):
        pair = first.kind == last.kind == "list" and len(first.parts) == len(last.parts)
        return Claim(None, last, near) if pair else Claim(first, last, near, (first, last))
    nested = last.kind == "list" and bool(last.parts) and all(part.kind == "list" for part in last.parts)
    if (last.kind == "matrix" or nested) and first.kind in ("power", "product") and all(map(str.isupper, names(first))):
        return Claim(first, last, near, (first, last))
    if len(sides) == 2 and is_name(last):
        return Claim(last, first, near, (first, last))
    if not names(first) | names(last):
        return Claim(None, last, near, statement=() if any(map(names, sides)) else sides)
    worked_out = len(sides) > 2 and not names(sides[-2]) | names(last) and same_value(sides[-2], last)
    if worked_out or same_value(first, last):
        return Claim(None, last, near)
    return Claim(None, last, near, (first, last))


def _ratio(node: Node, middle: int) -> Claim:
    """`A:B = 2:3` gives the ratio of two named things."""
    left, right = node.parts[: middle + 1], node.parts[middle + 1 :]
    if len(left) == 1 or not all(map(is_name, left)):
        return Claim(None, node)
    return Claim(None, right[0] if len(right) == 1 else Node("relation", node.value[middle + 1 :], right))


def _is_complex(node: Node) -> bool:
    """Whether a name is usual for complex numbers or vectors, so that `|z| = 2` does not solve for it."""
    return node.kind == "name" and (node.value in ("z", "w") or " " in node.value)


def calculated(node: Node) -> bool:
    """Whether a side of an equation of numbers is a calculation, rather than a form that was asked for."""
    return node.kind in ("sum", "product", "quotient", "negative")


def same_form(label: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
    """Whether two equations have the same sides, up to the order of sides, terms and factors."""
    wanted, given = [list(map(_form, sides)) for sides in (label, answer)]
    return given in (wanted, wanted[::-1])


def _form(node: Node) -> Node:
    """A tree with its terms and factors in one order, and numbers without the places they were written to."""
    parts = tuple(map(_form, node.parts))
    if node.kind in ("sum", "product"):
        parts = tuple(sorted(parts, key=repr))
    return Node(node.kind, node.value[0] if node.kind == "number" else node.value, parts)


def is_name(node: Node) -> bool:
    """Whether a side of an equation only names the other side: `x`, `f(x)`, `AB`, `|AB|`, `AB/CD`, `(x, y)`."""
    if node.kind in ("name", "text"):
        return True
    if node.kind == "call":
        if node.value == "abs":
            inner = node.parts[0]
            return (inner.kind == "product" and is_name(inner)) or (inner.kind == "name" and inner.value[0].isupper())
        return node.value.startswith("apply") or node.value in _NAMING
    if node.kind == "product":
        return all(part.kind == "name" and (part.value[0].isupper() or len(node.parts) > 3) for part in node.parts)
    if node.kind == "quotient":
        if all(part.kind == "product" and part.parts[0] == Node("name", "d") for part in node.parts):
            return True
        return all(part.kind == "product" and is_name(part) for part in node.parts)
    return node.kind == "list" and bool(node.parts) and all(map(is_name, node.parts))


def contradict(one: Node, other: Node) -> bool:
    """Whether two names mean different things. A numeric index and the name of a function decide nothing."""
    if one.kind != other.kind or one.kind not in ("name", "call"):
        return False
    if one.kind == "call":
        return one != other
    if "angle" in (one.value, other.value):
        return False
    (letter, _, index), (other_letter, _, other_index) = (name.value.partition("_") for name in (one, other))
    return letter != other_letter or (index != other_index and len(index) > 1 < len(other_index) and index.isalpha())


def difference(sides: tuple[Node, ...]) -> Node:
    """An expression that is 0 where both sides are equal."""
    return Node("sum", None, (sides[0], Node("negative", None, (sides[1],))))


def proportional(one: Node, other: Node, positive: bool = False) -> bool:
    """Whether one expression is a constant, not 0, times the other."""
    if names(one) != names(other):
        return False
    usable = [
        point for point in points(names(one), one, other) if _real_there(one, point) and _real_there(other, point)
    ]
    if len(usable) < 2:
        return False
    first = usable[0]
    ratio = Node("quotient", None, (one, other))
    if positive and not _positive(ratio, first):
        return False
    return all(_same_ratio(one, other, first, point) for point in usable[1:])


def _real_there(node: Node, point: Point) -> bool:
    """Whether an expression has a real value, not 0, at a point."""
    try:
        found = value(node, point)
    except (ArithmeticError, Unreadable, ValueError):
        return False
    return not isinstance(found, tuple) and is_real(found) and magnitude(found) is not None


def _positive(node: Node, point: Point) -> bool:
    found: Number = value(node, point)
    return bool((found if isinstance(found, fmpq) else found.real) > 0)


def _same_ratio(one: Node, other: Node, here: Point, there: Point) -> bool:
    """Whether two expressions have the same ratio at two points."""

    def products(arithmetic: Arithmetic) -> tuple[Number, Number]:
        near, far = TreeValues(arithmetic, here), TreeValues(arithmetic, there)
        return (
            arithmetic.multiply(near.value(one), far.value(other)),
            arithmetic.multiply(near.value(other), far.value(one)),
        )

    return agree(products)


def rounds(exact: Node, near: Node) -> bool:
    """Whether a decimal is the exact value, rounded to its last digit."""
    try:
        step = near.value[1] if near.kind == "number" else None
        error = abs(acb(value(exact)) - acb(value(near)))
    except (ArithmeticError, Unreadable, ValueError, TypeError):
        return False
    allowed = fmpq(51, 100) * (fmpq(step.numerator, step.denominator) if step else 1)
    return bool(error <= arb(allowed))


def inequality(node: Node) -> bool:
    return node.kind == "relation" and any(operator in ("<", ">", "<=", ">=", "!=") for operator in node.value)


def ascending(node: Node) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """A chain turned so that it ascends."""
    if all(operator[0] == ">" for operator in node.value):
        return tuple(operator.replace(">", "<") for operator in reversed(node.value)), tuple(reversed(node.parts))
    return node.value, node.parts


def opaque_relation(node: Node) -> bool:
    return node.kind == "relation" and node.value != (":",)
