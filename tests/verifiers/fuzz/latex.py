"""Prints trees as LaTeX in the many styles of people and models. One printer has one style."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.expr import E

SUM, PRODUCT, FACTOR, POWER, ATOM = range(5)
"""How tightly a text holds together: `a+b`, `a/b`, `2x`'s factor, `a^b`, `x`."""
_READ_OTHERWISE = re.compile(r"(?<![a-z\\])(?:pi|[a-z]{3,})(?![a-z])|\de")
"""Letters that would be read as a name or a word, and the e of scientific notation."""
_NAMES = {"pi": r"\pi", "e": "e", "i": "i"}


class Printer:
    """Prints one tree after another in one style."""

    def __init__(self, rng: Random, plain: bool = False) -> None:
        """
        Args:
            plain: the style of textbooks: no slashes, no `\\times`, no powers for roots.
        """
        self._rng = rng
        self._slash = not plain and rng.random() < 0.2
        self._frac = rng.choice((r"\frac", r"\frac", r"\dfrac", r"\tfrac"))
        self._short = rng.random() < 0.15
        self._times = r"\cdot " if plain else rng.choice((r"\cdot ", r"\cdot ", r"\times ", "*"))
        self._explicit = not plain and rng.random() < 0.2
        self._space = rng.choice(("", "", " "))
        self._parentheses = rng.choice((("(", ")"), ("(", ")"), (r"\left(", r"\right)")))
        self._bars = rng.choice((("|", "|"), (r"\left|", r"\right|"), (r"\lvert ", r"\rvert")))
        self._exp = rng.random() < 0.15
        self._bare = rng.random() < 0.3

    def __call__(self, node: E) -> str:
        return self._text(node)[0]

    def _text(self, node: E) -> tuple[str, int]:
        return getattr(self, f"_{node.kind}")(node)

    def _at_least(self, node: E, tightness: int) -> str:
        text, held = self._text(node)
        return text if held >= tightness else self._wrapped(text)

    def _wrapped(self, text: str) -> str:
        opening, closing = self._parentheses
        return f"{opening}{text}{closing}"

    def _number(self, node: E) -> tuple[str, int]:
        number: Fraction = node.data
        if number < 0:
            text, _ = self._text(E("number", (), -number))
            return f"-{text}", SUM
        if number.denominator == 1:
            return str(number), ATOM
        return self._ratio(str(number.numerator), str(number.denominator))

    def _decimal(self, node: E) -> tuple[str, int]:
        return node.data, SUM if node.data.startswith("-") else ATOM

    def _variable(self, node: E) -> tuple[str, int]:
        return node.data, ATOM

    def _constant(self, node: E) -> tuple[str, int]:
        return _NAMES[node.data], ATOM

    def _ratio(self, above: str, below: str) -> tuple[str, int]:
        if self._slash and above.isalnum() and below.isalnum() and below.isdigit():
            return f"{above}/{below}", PRODUCT
        if self._short and len(above) == len(below) == 1 and (above + below).isdigit():
            return f"{self._frac}{above}{below}", FACTOR
        return f"{self._frac}{{{above}}}{{{below}}}", FACTOR

    def _quotient(self, node: E) -> tuple[str, int]:
        above, below = node.args
        if self._slash:
            return f"{self._at_least(above, PRODUCT)}/{self._at_least(below, POWER)}", PRODUCT
        return self._ratio(self(above), self(below))

    def _sum(self, node: E) -> tuple[str, int]:
        text = self(node.args[0])
        for part in node.args[1:]:
            term = self(part)
            if part.kind == "negative" and part.args[0].kind in ("sum", "negative"):
                term = f"-{self._wrapped(self(part.args[0]))}"
            sign, term = ("-", term[1:]) if term.startswith("-") else ("+", term)
            text += f"{self._space}{sign}{self._space}{term}"
        return text, SUM

    def _negative(self, node: E) -> tuple[str, int]:
        text, held = self._text(node.args[0])
        return f"-{text if held > SUM else self._wrapped(text)}", SUM

    def _product(self, node: E) -> tuple[str, int]:
        text = ""
        factors = [part for part in node.args if part != E("number", (), Fraction(1))] or node.args[:1]
        for index, part in enumerate(factors):
            lead = index == 0 and part.kind == "number"
            factor = self(part) if lead and part.data < 0 else self._at_least(part, FACTOR)
            joint = self._joint(text, factor) if index else ""
            if not joint and _READ_OTHERWISE.search(text + factor):
                joint = r" \cdot "
            text += joint + factor
        return text, SUM if text.startswith("-") else PRODUCT

    def _joint(self, before: str, after: str) -> str:
        """What stands between two factors: nothing only where it can mean nothing else."""
        ambiguous = (
            after[0].isdigit()
            or "frac" in after[:6]
            or "frac" in before[:7]
            or (before.endswith(("!", "i", "e")) and not before.endswith((r"\pi",)))
            or any(name in before for name in (r"\sin", r"\cos", r"\tan", r"\ln", r"\log", "|", r"\exp"))
            or after.startswith(("|", r"\left|", r"\lvert"))
        )
        if self._explicit or ambiguous:
            return f"{self._space}{self._times}" if self._times != "*" else "*"
        return " " if before[-1].isalpha() and after[0].isalpha() and "\\" in before else ""

    def _power(self, node: E) -> tuple[str, int]:
        base, exponent = node.args
        if base == E("constant", (), "e") and self._exp:
            return rf"\exp{self._wrapped(self(exponent))}", FACTOR
        raised = self(exponent)
        bare = self._bare and len(raised) == 1
        return f"{self._at_least(base, ATOM)}^{raised if bare else f'{{{raised}}}'}", POWER

    def _root(self, node: E) -> tuple[str, int]:
        degree = "" if node.data == 2 else f"[{node.data}]"
        inside = self(node.args[0])
        return rf"\sqrt{degree}{{{inside}}}", POWER

    def _factorial(self, node: E) -> tuple[str, int]:
        return f"{self._at_least(node.args[0], ATOM)}!", POWER

    def _binomial(self, node: E) -> tuple[str, int]:
        return rf"\binom{{{self(node.args[0])}}}{{{self(node.args[1])}}}", POWER

    def _log(self, node: E) -> tuple[str, int]:
        base, inside = node.args
        return rf"\log_{{{self(base)}}}{self._wrapped(self(inside))}", FACTOR

    def _call(self, node: E) -> tuple[str, int]:
        inside = self(node.args[0])
        if node.data == "abs":
            opening, closing = self._bars
            return f"{opening}{inside}{closing}", POWER
        if self._bare and node.args[0].kind == "variable":
            return rf"\{node.data} {inside}", PRODUCT
        return rf"\{node.data}{self._wrapped(inside)}", FACTOR


def show(rng: Random, *nodes: E, plain: bool = False) -> tuple[str, ...]:
    """Each tree in a style of its own."""
    return tuple(Printer(rng, plain)(node) for node in nodes)
