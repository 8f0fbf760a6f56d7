"""The points at which expressions in variables are compared: rational, so that polynomials have exact values there.

They depend on the names of the variables. Two different expressions in answers do not agree there by chance.
"""

from __future__ import annotations

import random
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from flint import fmpq

from olmorl.verifiers.math.algebra.tree import Node, contains, names

POSITIVE_POINTS = 6
MAX_REACH = 10**6
"""Largest constant that has points on either side."""
_BENDING = ("abs", "root", "max", "min", "floor", "ceil")
_COUNTING = frozenset("ijklmn")
"""Letters of whole numbers, if they are rounded."""
_WHOLE = ("sum", "prod", "gcd", "lcm", "mod", "double factorial")
"""Functions of whole numbers. Of a sum these are its bounds."""
_ONE = fmpq(1)


class Point(NamedTuple):
    """Where the variables are."""

    number: int
    negative: frozenset[str] = frozenset()
    """Variables that are below zero here."""
    scale: fmpq = _ONE
    """A factor for all variables."""
    whole: frozenset[str] = frozenset()
    """Variables that are positive whole numbers."""

    def of(self, name: str) -> fmpq:
        """The value of a variable."""
        size = place(name, self.number)
        if name in self.whole:
            return fmpq((size + 1).floor())
        return -size * self.scale if name in self.negative else size * self.scale


ORIGIN = Point(0)


def points(variables: frozenset[str], *expressions: Node) -> list[Point]:
    """Points at which all are positive, then all negative, then any two of them of different signs.

    Where an expression may bend, as an absolute value does, there are points on either side of its constants too.
    What counts the terms of a sum and the like is a whole number.
    """
    found = [Point(number) for number in range(POSITIVE_POINTS)]
    order = sorted(variables)
    found.append(Point(len(found), variables))
    for bit in range(max(len(order) - 1, 1).bit_length()):
        chosen = frozenset(name for index, name in enumerate(order) if index >> bit & 1)
        found += [Point(len(found), chosen), Point(len(found) + 1, variables - chosen)]
    if any(contains(expression, "call", *_BENDING) for expression in expressions):
        reach = fmpq(10 * int(max(map(_largest, expressions)) + 1))
        found += [
            Point(len(found), scale=reach),
            Point(len(found), variables, reach),
            Point(len(found), scale=1 / reach),
        ]
    whole = frozenset[str]().union(*map(_whole, expressions))
    return [point._replace(whole=whole) for point in found] if whole else found


def _whole(expression: Node) -> frozenset[str]:
    """The variables that must be whole numbers: bounds of sums, and what is rounded, divided or an exponent of -1."""
    found: set[str] = set()
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        waiting += node.parts
        if node.kind == "call" and node.value in _WHOLE:
            found |= names(node) if node.value not in ("sum", "prod") else names(node._replace(parts=node.parts[:-1]))
        elif node.kind == "call" and node.value in ("floor", "ceil"):
            found |= names(node.parts[0]) & _COUNTING
        elif node.kind == "power" and node.parts[0].kind == "negative" and not names(node.parts[0]):
            found |= names(node.parts[1]) & _COUNTING
    return frozenset(found)


def _largest(node: Node) -> Fraction:
    """The largest number in a tree, up to a bound."""
    here = abs(node.value[0]) if node.kind == "number" else Fraction(0)
    return min(max((here, *map(_largest, node.parts))), Fraction(MAX_REACH))


@lru_cache(8192)
def place(name: str, point: int) -> fmpq:
    """The distance of a variable from zero at a point: from 0.2 to 8. Rational, so that polynomials are exact."""
    return fmpq(int(2 ** (random.Random(f"{point} {name}").random() * 5.3 + 17.7)), 1 << 20)
