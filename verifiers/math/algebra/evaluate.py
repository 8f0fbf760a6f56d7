"""The value of a tree at a point: an exact fraction, or a ball around the true value."""

from __future__ import annotations

from itertools import chain

from flint import acb, arb, ctx, fmpq

from olmorl.verifiers.math.algebra.arithmetic import FUNCTIONS, Arithmetic, Number, Rows, is_real, is_whole
from olmorl.verifiers.math.algebra.points import ORIGIN, Point, place
from olmorl.verifiers.math.algebra.tree import Node, Unreadable, bound, contains

START_BITS, MARGIN_BITS = 256, 128
"""The first precision, and the bits beyond the needed precision."""
MAX_TERMS = 2000
"""The most terms of a sum that is calculated."""
BASIS = ("vec i", "vec j", "vec k")
"""Names of the unit vectors."""


def value(node: Node, point: Point = ORIGIN) -> Number | Rows:
    """The value of an expression, or the rows of a matrix, to at least half of START_BITS.

    Raises:
        ArithmeticError, Unreadable: it has none there, or needs more precision.
    """
    with ctx.workprec(START_BITS):
        evaluator = TreeValues(Arithmetic(), point)
        found = evaluator.value(node)
        if not finite(found) or evaluator.arithmetic.needed > START_BITS - MARGIN_BITS:
            raise ArithmeticError("no value of a known precision")
        return found


class TreeValues:
    """Values at one point. A node of kind x is evaluated by `_x`."""

    def __init__(
        self, arithmetic: Arithmetic, point: Point = ORIGIN, common_log: bool = False, tolerance: float = 0.0
    ) -> None:
        """
        Args:
            common_log: a logarithm without a base has base 10.
            tolerance: relative, of a written decimal; 0 for decimals that are exact.
        """
        self.arithmetic = arithmetic
        self.strayed = False
        """Whether an intermediate value was not real."""
        self._point = point
        self._common_log = common_log
        self._tolerance = tolerance
        self._counting: dict[str, Number] = {}
        """Values of the variables that are bound in a sum."""

    def value(self, node: Node) -> Number | Rows:
        evaluate = getattr(self, f"_{node.kind}", None)
        if evaluate is None:
            raise Unreadable(f"a {node.kind} has no value")
        found = evaluate(node)
        self.strayed = self.strayed or not (isinstance(found, tuple) or is_real(found))
        return found

    def _number(self, node: Node) -> Number:
        number, step = node.value
        exact = fmpq(number.numerator, number.denominator)
        if step is None or not self._tolerance:
            return exact
        return acb(arb(arb(exact), arb(abs(exact)) * arb(self._tolerance * (1 + 1e-5))))

    def _constant(self, node: Node) -> Number:
        if node.value == "infinity":
            raise Unreadable("infinity has no value")
        return {"pi": acb.pi, "e": arb.const_e, "i": lambda: acb(0, 1)}[node.value]() * acb(1)

    def _name(self, node: Node) -> Number | Rows:
        if node.value in BASIS:
            return tuple((fmpq(int(node.value == unit)),) for unit in BASIS)
        return self._counted(node.value) if self._counting else self._point.of(node.value)

    def _counted(self, name: str) -> Number:
        """A variable within a sum: the one that counts, or one with it as its index."""
        letter, _, index = name.partition("_")
        indexed = f"{letter}_{self._counting[index]}" if index in self._counting else name
        return self._counting[name] if name in self._counting else self._point.of(indexed)

    def _text(self, node: Node) -> Number:
        return place(f"text {node.value}", self._point.number)

    def _quantity(self, node: Node) -> Number | Rows:
        return self.value(node.parts[0])

    def _percent(self, node: Node) -> Number | Rows:
        return self.arithmetic.multiply(self.value(node.parts[0]), fmpq(1, 100))

    def _degrees(self, node: Node) -> Number | Rows:
        return self.arithmetic.multiply(self.value(node.parts[0]), acb.pi() / 180)

    def _negative(self, node: Node) -> Number | Rows:
        return self.arithmetic.multiply(self.value(node.parts[0]), fmpq(-1))

    def _sum(self, node: Node) -> Number | Rows:
        return self.arithmetic.add([self.value(part) for part in node.parts])

    def _product(self, node: Node) -> Number | Rows:
        result = self.value(node.parts[0])
        for part in node.parts[1:]:
            result = self.arithmetic.multiply(result, self.value(part))
        return result

    def _quotient(self, node: Node) -> Number | Rows:
        above, below = map(self.value, node.parts)
        return self.arithmetic.divide(above, below)

    def _power(self, node: Node) -> Number:
        base, exponent = map(self.value, node.parts)
        return self.arithmetic.power(base, exponent)

    def _matrix(self, node: Node) -> Rows:
        cells = [self.value(part) for part in node.parts]
        return tuple(tuple(cells[start : start + node.value]) for start in range(0, len(cells), node.value))

    def _relation(self, node: Node) -> Number | Rows:
        if node.value != (":",):
            raise Unreadable("a relation has no value")
        return self._quotient(node)

    def _call(self, node: Node) -> Number:
        name = node.value
        if index := bound(node):
            return self._bound(node, *index)
        known = name in FUNCTIONS or name in ("log", "ln")
        arguments = [self.value(part) for part in (node.parts if known or name == "det" else _bare(node.parts))]
        if name == "det":
            return self.arithmetic.determinant(arguments[0])
        if any(isinstance(argument, tuple) for argument in arguments):
            raise Unreadable("a function of a matrix")
        if name in ("log", "ln"):
            default = fmpq(10) if name == "log" and self._common_log else acb(arb.const_e())
            return self.arithmetic.logarithm(arguments[0], arguments[1] if len(arguments) > 1 else default)
        return self.arithmetic.call(name, arguments) if known else self._unknown(name, arguments)

    def _bound(self, node: Node, index: str) -> Number:
        """A sum or product term by term, if its bounds are whole numbers; else an unknown function of its parts."""
        terms = self._range(node) if node.value in ("sum", "prod") and len(node.parts) == 3 else None
        outer = self._counting
        if terms is None:
            self._counting = outer | {index: place("bound", 0)}
            found = self._unknown(node.value, list(map(self._or_endless, _bare(node.parts))))
        else:
            values = []
            for term in terms:
                self._counting = outer | {index: fmpq(term)}
                values.append(self.value(node.parts[-1]))
            found = self._folded(node.value, values)
        self._counting = outer
        return found

    def _or_endless(self, node: Node) -> Number:
        return place(repr(node), 0) if contains(node, "constant", "infinity") else self.value(node)

    def _range(self, node: Node) -> range | None:
        """The whole numbers between the bounds of a sum. None if it is endless."""
        lower, upper, _ = node.parts
        if lower.value != ("=",) or upper.kind == "relation" or contains(upper, "constant", "infinity"):
            return None
        first, last = map(self._whole, (lower.parts[1], upper))
        if last - first >= MAX_TERMS:
            raise Unreadable("a sum of too many terms")
        return range(first, last + 1)

    def _whole(self, node: Node) -> int:
        found: Number = self.value(node)
        if not is_whole(found):
            raise Unreadable("a bound that is no whole number")
        return int(found.p)

    def _folded(self, name: str, values: list[Number]) -> Number:
        if name == "sum":
            return self.arithmetic.add(values)
        result = fmpq(1)
        for factor in values:
            result = self.arithmetic.multiply(result, factor)
        return result

    def _unknown(self, name: str, arguments: list[Number]) -> Number:
        """An unknown function: a fixed function of its arguments for each name."""
        total: Number = place(f"call {name}", 0)
        for index, argument in enumerate(arguments):
            weighted = self.arithmetic.multiply(place(f"argument {index} of {name}", 0), argument)
            total = self.arithmetic.add([total, weighted])
        return self.arithmetic.add([self.arithmetic.call("sin", [total]), place(f"call {name}", 1)])


def _bare(parts: tuple[Node, ...]) -> list[Node]:
    """The values inside a relation or a list that is an argument."""
    return list(
        chain.from_iterable(_bare(part.parts) if part.kind in ("relation", "list") else (part,) for part in parts)
    )


def finite(found: Number | Rows) -> bool:
    """Whether a value is known and not infinite."""
    if isinstance(found, tuple):
        return all(map(finite, chain.from_iterable(found)))
    return isinstance(found, fmpq) or bool(found.is_finite())
