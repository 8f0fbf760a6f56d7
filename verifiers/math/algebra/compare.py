"""Decides whether two answers are the same: values, lists, sets, matrices, equations, inequalities."""

from __future__ import annotations

from fractions import Fraction
from string import ascii_lowercase, ascii_uppercase

from flint import fmpq

from olmorl.verifiers.math.algebra import vectors
from olmorl.verifiers.math.algebra.antiderivatives import same_antiderivative
from olmorl.verifiers.math.algebra.claims import (
    Claim,
    ascending,
    calculated,
    claim,
    contradict,
    difference,
    inequality,
    opaque_relation,
    proportional,
    rounds,
    same_form,
)
from olmorl.verifiers.math.algebra.equality import less_than_one, same_value
from olmorl.verifiers.math.algebra.evaluate import BASIS, value
from olmorl.verifiers.math.algebra.parameters import same_progression, with_letters_of
from olmorl.verifiers.math.algebra.regions import (
    contradicts_itself,
    endless,
    is_region,
    region,
    same_region,
    whole_numbers,
)
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, approximated, contains, names
from olmorl.verifiers.math.numbers import Policy, unit_ratio
from olmorl.verifiers.math.units import NO_UNIT, Unit, unit

MAX_UNORDERED = 64
"""Items that are matched without order."""
_UNORDERED = {"", "or", "and", "{}"}
_POSITIONAL = {"()", "[]"}
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_ALPHABET = f"{ascii_lowercase} {ascii_uppercase}"
_SETS_OF_CONSTANTS = {"Z", "N", "R", "C", "Q"}


def same(label: Node, answer: Node, policy: Policy) -> bool:
    """Whether an answer says what the label says."""
    comparison = _Comparison(policy)
    return any(comparison.same(label, one) for one in with_letters_of(label, answer))


class _Comparison:
    """Comparisons under one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tolerance = policy.tolerance

    def same(self, label: Node, answer: Node) -> bool:
        if label == answer:
            return True
        label, answer = _written_out(label), _written_out(_each_named(answer, label))
        if is_region(label) or is_region(answer):
            if contradicts_itself(answer) and not contradicts_itself(label):
                return False
            regions = region(label), region(answer)
            if regions[0] is not None and regions[1] is not None:
                decimal = approximated(label) or approximated(answer)
                return same_region(regions[0], regions[1], self._tolerance if decimal else 0.0)
        if inequality(label) or inequality(answer):
            return inequality(label) and inequality(answer) and self._same_inequality(label, answer)
        return self._same_claim(claim(label), claim(answer)) or same_progression(label, answer)

    # --- equations ---

    def _same_claim(self, label: Claim, answer: Claim) -> bool:
        if label.statement and answer.statement:
            return same_form(label.statement, answer.statement)
        if not self._true(answer.statement) or not self._well_rounded(label, answer):
            return False
        if label.statement and not calculated(label.statement[0]):
            return False
        same_left = label.equation and answer.equation and label.equation[0] == answer.equation[0]
        if same_left and self._same_thing(label.value, answer.value):
            return True
        if not (label.name and answer.name and contradict(label.name, answer.name)):
            bare = (
                label.equation is None or label.name is not None,
                answer.equation is None or answer.name is not None or _asked_sum(label, answer),
            )
            if all(bare) and self._same_thing(label.value, answer.value):
                return True
            if all(bare) and self._approximates(label, answer):
                return True
        if label.equation and answer.equation and not any(_has_unit(claim) for claim in (label, answer)):
            return proportional(difference(label.equation), difference(answer.equation))
        return False

    def _true(self, sides: tuple[Node, ...]) -> bool:
        """Whether an equation of numbers holds. Its right side may be rounded."""
        decimal = bool(sides) and sides[-1].kind == "number" and sides[-1].value[1] is not None
        return all(self._same_thing(side, sides[-1]) or (decimal and rounds(side, sides[-1])) for side in sides[:-1])

    def _well_rounded(self, label: Claim, answer: Claim) -> bool:
        """Whether the approximation in an answer is right to its last digit, or is the label's."""
        near = answer.approximation
        if near is None or names(answer.value):
            return True
        return rounds(answer.value, near) or self._same_thing(label.approximation or label.value, near)

    def _approximates(self, label: Claim, answer: Claim) -> bool:
        """Whether an approximation next to the exact value equals the other side, and is right to its last digit."""
        for one, other in ((label, answer), (answer, label)):
            near = one.approximation
            if near is not None and self._same_thing(near, other.value) and (one is label or rounds(one.value, near)):
                return True
        return False

    # --- things ---

    def _same_thing(self, label: Node, answer: Node) -> bool:
        label, answer = vectors.meant(_single(label), _single(answer))
        if label.kind == "list" or answer.kind == "list":
            return self._same_list(label, answer)
        if answer.kind == "relation" and answer.value[0] == ":":
            return label.kind != "number" and self._same_ratio(label, answer)
        if opaque_relation(label) or opaque_relation(answer):
            return self._same_relation(label, answer)
        if label.kind == "set" or answer.kind == "set":
            return label == answer
        if (end := endless(label)) or endless(answer):
            return end == endless(answer)
        return self._same_quantity(label, answer)

    def _same_quantity(self, label: Node, answer: Node) -> bool:
        """Compare values with their units."""
        label, wanted = _measured(label)
        answer, given = _measured(answer)
        ratio = None if wanted is None or given is None else unit_ratio(wanted, given, self._policy)
        if ratio is None or bool(_modulus(wanted)) != bool(_modulus(given)):
            return False
        if wanted == given and (modulus := _modulus(wanted)):
            return _congruent(label, answer, modulus)
        if ratio != 1:
            answer = Node("product", None, (Node("number", (ratio, None)), answer))
        if any(same_value(one, other, self._tolerance) for one, other in self._readings(label, answer)):
            return True
        return same_antiderivative(label, answer)

    def _readings(self, label: Node, answer: Node) -> list[tuple[Node, Node]]:
        """The pairs to compare if one side has degrees or percents: either may mean the bare number."""
        plain = label, answer
        if {label.kind, answer.kind} == {"degrees", "percent"}:
            return []
        for kind in ("degrees", "percent"):
            marked = tuple(node.kind == kind for node in plain)
            if marked == (True, True):
                return [(label.parts[0], answer.parts[0])]
            if any(marked):
                bare = _without(kind, label), _without(kind, answer)
                radians = kind == "percent" or any(contains(node, "constant", "pi") for node in plain)
                strict = radians if kind == "degrees" else self._policy.strict_percent or not _may_be_percent(label)
                return [pair for pair, use in ((bare, not strict), (plain, radians)) if use]
        return [plain]

    def _same_ratio(self, label: Node, answer: Node) -> bool:
        """Compare ratios: `3:4` equals `6:8` and 3/4."""
        if label.kind != "relation":
            return self._same_quantity(label, answer)
        if label.value != answer.value or set(answer.value) != {":"} or len(label.parts) != len(answer.parts):
            return False
        pairs = zip(label.parts, answer.parts, strict=True)
        first, second = label.parts[0], answer.parts[0]
        return all(
            same_value(Node("quotient", None, (one, first)), Node("quotient", None, (other, second)), self._tolerance)
            for one, other in pairs
        )

    def _same_relation(self, label: Node, answer: Node) -> bool:
        """Compare relations without a value, part by part."""
        alike = label.kind == answer.kind == "relation" and label.value == answer.value
        return alike and all(self.same(one, other) for one, other in zip(label.parts, answer.parts, strict=True))

    def _same_inequality(self, label: Node, answer: Node) -> bool:
        """Compare chains with the same operators, or single inequalities with proportional sides."""
        (operators, operands), (others, other_operands) = ascending(label), ascending(answer)
        if operators != others:
            return False
        if all(self._same_thing(one, other) for one, other in zip(operands, other_operands, strict=True)):
            return True
        if len(operators) > 1:
            return False
        return proportional(difference(operands), difference(other_operands), positive=True)

    # --- lists ---

    def _same_list(self, label: Node, answer: Node) -> bool:
        label, answer = _as_list(label, answer), _as_list(answer, label)
        if label.kind != "list" or answer.kind != "list":
            return False
        if label.value == answer.value == "cases":
            return len(label.parts) == len(answer.parts) and self._match(list(label.parts), list(answer.parts))
        if "or" in (label.value, answer.value) and label.value != answer.value and _several_names(label, answer):
            return False
        wanted, given = list(label.parts), list(answer.parts)
        points = all(part.kind == "list" for part in (*wanted, *given))
        if label.value == answer.value == "{}" or (points and {label.value, answer.value} <= _UNORDERED):
            wanted, given = self._distinct(wanted), self._distinct(given)
        if len(wanted) != len(given) or max(len(wanted), len(given)) > MAX_UNORDERED:
            return False
        loose = {label.value, answer.value} <= _UNORDERED
        if loose and not (self._policy.ordered and "{}" not in (label.value, answer.value)):
            return self._match(wanted, given)
        if not loose and not _alike(label.value, answer.value, len(wanted)):
            return False
        return all(map(self.same, _by_name(wanted), _by_name(given)))

    def _match(self, wanted: list[Node], given: list[Node]) -> bool:
        """Whether each item has another that is the same."""
        left = list(given)
        for item in wanted:
            found = next((index for index, other in enumerate(left) if self.same(item, other)), None)
            if found is None:
                return False
            del left[found]
        return True

    def _distinct(self, items: list[Node]) -> list[Node]:
        kept: list[Node] = []
        for item in items[:MAX_UNORDERED]:
            if not any(self.same(item, other) for other in kept):
                kept.append(item)
        return kept


def _each_named(node: Node, other: Node) -> Node:
    """`x = y = z = 1` as a list, beside a list."""
    chain = node.kind == "relation" and len(node.parts) > 2 and set(node.value) == {"="}
    if other.kind != "list" or not chain or any(part.kind != "name" for part in node.parts[:-1]):
        return node
    return Node("list", "", tuple(Node("relation", ("=",), (part, node.parts[-1])) for part in node.parts[:-1]))


def _written_out(node: Node) -> Node:
    """A bounded set of whole numbers as their list."""
    numbers = whole_numbers(node)
    return Node("list", "{}", tuple(Node("number", (Fraction(one), None)) for one in numbers)) if numbers else node


def _may_be_percent(label: Node) -> bool:
    """Whether a label may mean a percentage: it has the sign, is 1 or more, or has variables."""
    return label.kind == "percent" or bool(names(label)) or not less_than_one(label)


def _without(kind: str, node: Node) -> Node:
    return node.parts[0] if node.kind == kind else node


def _asked_sum(label: Claim, answer: Claim) -> bool:
    """Whether the answer gives the value of an expression in several letters, `m + n = 73`, for a plain number."""
    asked = answer.equation[0] if answer.equation else answer.value
    trigonometric = asked.kind == "call" and asked.value in _TRIGONOMETRIC
    return (
        (len(names(asked)) > 1 or trigonometric)
        and names(answer.value) <= {*BASIS}
        and label == Claim(None, label.value)
        and not names(label.value)
    )


def _has_unit(side: Claim) -> bool:
    return contains(side.value, "quantity")


def _measured(node: Node) -> tuple[Node, Unit | None]:
    """A value and its unit. The unit is None if the words after the value are no unit."""
    if node.kind != "quantity":
        return node, NO_UNIT
    if node.value.startswith("mod "):
        return node.parts[0], Unit(Fraction(1), ((node.value, 1),))
    return node.parts[0], unit(f" \x02{node.value}\x03")


def _modulus(one: Unit | None) -> int:
    """The `7` of `3 \\pmod 7`; 0 where there is none."""
    name = one.dimensions[0][0] if one is not None and one.dimensions else ""
    return int(name[4:]) if name.startswith("mod ") and name[4:].isdigit() else 0


def _congruent(label: Node, answer: Node, modulus: int) -> bool:
    """Whether two values are of one class of whole numbers."""
    apart = Node("quotient", None, (difference((label, answer)), Node("number", (Fraction(modulus), None))))
    if names(apart):
        return same_value(label, answer)
    try:
        found = value(apart)
    except (ArithmeticError, Unreadable, ValueError):
        return False
    return isinstance(found, fmpq) and found.q == 1


def _single(node: Node) -> Node:
    """The only element of a set, or the coordinates of a point such as `A(1, 2)`. Anything else stays."""
    if node.kind == "list" and node.value == "{}" and len(node.parts) == 1 and node.parts[0].kind != "list":
        return node.parts[0]
    if node.kind == "builder" and node.parts[1].kind == "relation" and node.parts[1].parts[-1] == Node("set", "R"):
        return node.parts[0]
    if (
        node.kind == "call"
        and node.value.startswith("apply ")
        and node.value[6:].isupper()
        and node.parts[0].kind == "list"
    ):
        return node.parts[0]
    if (
        node.kind == "product"
        and len(node.parts) == 2
        and node.parts[1].kind == "list"
        and node.parts[0].kind == "name"
    ):
        return node.parts[1] if node.parts[0].value.isupper() else node
    return _multiplied(node)


def _multiplied(node: Node) -> Node:
    """A tuple that is multiplied or divided by a number, with its items multiplied."""
    place = {"product": -1, "quotient": 0}.get(node.kind)
    inner = node.parts[place] if place is not None else node
    if inner is node or inner.kind != "list" or inner.value not in _POSITIONAL or len(inner.parts) < 2:
        return node
    scaled = (node._replace(parts=(*node.parts[:-1], one) if place else (one, *node.parts[1:])) for one in inner.parts)
    return inner._replace(parts=tuple(scaled))


def _as_list(node: Node, other: Node) -> Node:
    """A list for comparison: a column as a tuple, a matrix as its rows, without `k \\in \\mathbb{Z}`."""
    if node.kind == "matrix":
        rows = [node.parts[start : start + node.value] for start in range(0, len(node.parts), node.value)]
        nested = other.kind == "list" and any(part.kind == "list" for part in other.parts)
        listed = nested and other.value == "[]" and len(rows) > 1
        items = tuple(Node("list", "[]", tuple(row)) for row in rows) if nested else node.parts
        return Node("list", "[]" if listed else "()", items) if nested or node.value == 1 else node
    if node == Node("call", "binom", node.parts) and other.kind == "list":
        return Node("list", "()", node.parts)
    if node.kind == "list" and node.value in _UNORDERED and len(node.parts) > 1:
        kept = tuple(part for part in node.parts if not _domain_remark(part))
        return node._replace(parts=kept) if kept else node
    return node if node.kind == "list" else Node("list", "", (node,))


def _domain_remark(node: Node) -> bool:
    return (
        node.kind == "relation"
        and node.value == ("in",)
        and node.parts[1].kind == "set"
        and (node.parts[1].value in _SETS_OF_CONSTANTS)
    )


def _alike(one: str, other: str, length: int) -> bool:
    """Whether two kinds of brackets mean the same around a list in order."""
    kinds = {one, other}
    if len(kinds) == 1 or kinds in ({"", "()"}, {"or", "()"}):
        return True
    return length > 2 and kinds <= {"", *_POSITIONAL}


def _several_names(*lists: Node) -> bool:
    """Whether the items give values of different variables, as in `x = 4 or y = -1`."""
    found = {name for node in lists for item in node.parts if (name := claim(item).name) is not None}
    return len(found) > 1


def _by_name(items: list[Node]) -> list[Node]:
    """Equations of different variables in the order of their names: `y = 2, x = 1` is (1, 2)."""
    named = [claim(item).name for item in items]
    variables = [name.value for name in named if name is not None and name.kind == "name"]
    in_a_row = "".join(sorted(variables)) in _ALPHABET
    if len(set(variables)) < len(items) or not in_a_row:
        return items
    return [item for _, item in sorted(zip(variables, items, strict=True), key=lambda pair: pair[0])]
