"""Letters that stand for any number: constants of a general solution, and the counter of a progression."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

from flint import acb, fmpq

from olmorl.verifiers.math.algebra.claims import claim, difference
from olmorl.verifiers.math.algebra.equality import same_value
from olmorl.verifiers.math.algebra.evaluate import value
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, contains, names, replaced

MAX_CONSTANTS = 3
_COUNTERS, _CONSTANTS = frozenset("klmnN"), frozenset("abckABCK")
_PROGRESSIVE = ("relation", "list", "builder", "quantity", "sum")
"""Kinds that a progression or a class of numbers can have."""
_WHOLE = (Node("set", "Z"), Node("set", "N"))


def with_letters_of(label: Node, answer: Node) -> Iterator[Node]:
    """The answer, and with the label's letters in place of its own: `k\\pi` for `n\\pi`, `y = Ce^x` for `y = Ae^x`."""
    yield answer
    if all(map(_gives_function, (label, answer))):
        arguments = [node.parts[0].parts for node in (label, answer)]
        if all(len(one) == 1 and one[0].kind == "name" for one in arguments):  # f(t) = 3t is f(x) = 3x
            yield _renamed(answer, {arguments[1][0].value: arguments[0][0].value})
    letters, others = names(_formula(label)), names(_formula(answer))
    own = sorted(name for name in letters if name not in others or _numbered(name))
    other = sorted(name for name in others if name not in letters or _numbered(name))
    if (own, other) in ((["x"], ["X"]), (["X"], ["x"])):  # of a polynomial
        yield _renamed(answer, dict(zip(other, own, strict=True)))
    if not 0 < len(own) == len(other) <= MAX_CONSTANTS:
        return
    if all(_is_parameter(label, one) for one in own) and all(_is_parameter(answer, one) for one in other):
        for order in permutations(own):
            yield _renamed(answer, dict(zip(other, order, strict=True)))


def _renamed(node: Node, letters: dict[str, str]) -> Node:
    if node.kind == "name" and node.value in letters:
        return Node("name", letters[node.value])
    return node._replace(parts=tuple(_renamed(part, letters) for part in node.parts))


def _formula(node: Node) -> Node:
    """The right side of an equation that gives a function."""
    return node.parts[1] if _gives_function(node) else node


def _gives_function(node: Node) -> bool:
    return node.kind == "relation" and node.value == ("=",) and node.parts[0].kind in ("call", "name")


def _all(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _all(part)


def _numbered(name: str) -> bool:
    """Whether it is a constant with a number, `C_1`."""
    return name[:2].lower() == "c_" and name[2:].isdigit()


def _is_parameter(node: Node, letter: str) -> bool:
    """Whether a letter counts periods, or is a constant of a function that is given by a formula."""
    turns = contains(node, "constant", "pi") or contains(node, "degrees")
    periodic = (turns and names(_formula(node)) == {letter}) or any(map(_counts, _all(node)))
    if letter in _COUNTERS and periodic:
        return True
    return _gives_function(node) and (letter in _CONSTANTS or _numbered(letter)) and letter not in names(node.parts[0])


def same_progression(label: Node, answer: Node) -> bool:
    """Whether both are the numbers of one progression: `x \\equiv 2 \\pmod 7` and `x = 7k + 2, k \\in \\mathbb{Z}`.

    Only one side has to say that its letter counts; periods are multiples of pi.
    """
    if not any(node.kind in _PROGRESSIVE for node in (label, answer)) or _COUNTERS.isdisjoint(
        names(answer) | names(label)
    ):
        return False
    classes = [_class(node) for node in (label, answer)]
    if not (
        any(classes)
        or all(map(_of_whole_numbers, (label, answer)))
        or all(contains(node, "constant", "pi") for node in (label, answer))
    ):
        return False
    one, other = (found or _linear(node) for found, node in zip(classes, (label, answer), strict=True))
    if one is None or other is None:
        return False
    periods = Node("quotient", None, (one[1], other[1]))
    shift = _whole_value(Node("quotient", None, (difference((one[0], other[0])), one[1])))
    return _whole_value(periods) in (1, -1) and shift is not None


def _class(node: Node) -> tuple[Node, Node] | None:
    """Start and step of a class of whole numbers."""
    given = claim(node).value
    modulus = given.value[4:] if given.kind == "quantity" and given.value.startswith("mod ") else ""
    return (given.parts[0], Node("number", (Fraction(modulus), None))) if modulus.isdigit() else None


def _linear(node: Node) -> tuple[Node, Node] | None:
    """Start and step of what is linear in one counter."""
    listed = node.kind == "list" and node.value == "" and len(node.parts) == 2
    if node.kind == "builder" or (listed and _counts(node.parts[1])):
        node = node.parts[0]
    given = claim(node).value
    counters = names(given)
    if given.kind in ("list", "relation") or len(counters) != 1 or not counters <= _COUNTERS:
        return None
    name = Node("name", next(iter(counters)))
    first, second, third = (replaced(given, name, Node("number", (Fraction(place), None))) for place in (0, 1, 2))
    step = difference((second, first))
    return (first, step) if same_value(step, difference((third, second))) else None


def _of_whole_numbers(node: Node) -> bool:
    """Whether the answer says that its letter counts."""
    return node.kind in ("builder", "list") and len(node.parts) == 2 and _counts(node.parts[1])


def _counts(node: Node) -> bool:
    return node.kind == "relation" and node.value == ("in",) and node.parts[1] in _WHOLE


def _whole_value(node: Node) -> int | None:
    """The value, if it is a whole number."""
    try:
        found = value(node)
    except (ArithmeticError, Unreadable, ValueError):
        return None
    if isinstance(found, fmpq):
        return int(found.p) if found.q == 1 else None
    near = acb(found).real.unique_fmpz()
    number = None if near is None else Node("number", (Fraction(int(near)), None))
    return int(near) if number and same_value(node, number) else None
