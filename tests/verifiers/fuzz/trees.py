"""Families of random expressions: rewritten by rules that keep the value, or changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.verifiers.fuzz.expr import EULER, PI, E, call, lift, over, root, var
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Families, Made
from tests.verifiers.fuzz.truth import equal

NAMES = ("x", "y", "z", "a", "b", "t", "n")


def _leaf(rng: Random, names: list[str]) -> E:
    number = lift(rng.randint(1, 12))
    if names and rng.random() < 0.6:
        return var(rng.choice(names))
    return number if names else rng.choice((number, number, PI, EULER, root(rng.choice((2, 3, 5, 7)))))


def _tree(rng: Random, names: list[str], depth: int) -> E:
    if depth == 0 or rng.random() < 0.15:
        return _leaf(rng, names)
    one, two = _tree(rng, names, depth - 1), _tree(rng, names, depth - 1)
    shape = rng.random()
    if shape < 0.3:
        return one + two
    if shape < 0.45:
        return one - two
    if shape < 0.65:
        return one * two
    if shape < 0.78:
        return one / two
    if shape < 0.88:
        return one ** lift(rng.randint(2, 4))
    if shape < 0.94:
        return root(one**2 + lift(rng.randint(1, 9)) if names else one, rng.choice((2, 2, 3)))
    inside = one**2 + 1 if names else one
    return rng.choice((call("ln", inside), call("abs", one), call("sin", one), call("cos", one)))


# --- rules that keep the value ------------------------------------------------------------------


def _shuffled(rng: Random, node: E) -> E:
    if node.kind in ("sum", "product"):
        return E(node.kind, tuple(rng.sample(node.args, len(node.args))))
    return node


def _distributed(rng: Random, node: E) -> E:
    if node.kind != "product" or not any(part.kind == "sum" for part in node.args):
        return node
    index = next(index for index, part in enumerate(node.args) if part.kind == "sum")
    others = node.args[:index] + node.args[index + 1 :]
    terms = [_multiplied(term, others) for term in node.args[index].args]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _multiplied(term: E, others: tuple[E, ...]) -> E:
    negative = term.kind == "negative"
    product = term.args[0] if negative else term
    for other in others:
        product = product * other
    return -product if negative else product


def _negated_twice(rng: Random, node: E) -> E:
    if node.kind != "sum":
        return node
    parts = [part.args[0] if part.kind == "negative" else -part for part in node.args]
    return -E("sum", tuple(parts))


def _scaled(rng: Random, node: E) -> E:
    if node.kind != "quotient":
        return node
    factor = rng.randint(2, 6)
    return (factor * node.args[0]) / (factor * node.args[1])


def _apart(rng: Random, node: E) -> E:
    if node.kind == "quotient" and node.args[0].kind == "sum":
        above, below = node.args
        return E("sum", tuple(_over(part, below) for part in above.args))
    return node


def _over(part: E, below: E) -> E:
    return -(part.args[0] / below) if part.kind == "negative" else part / below


def _split_power(rng: Random, node: E) -> E:
    if node.kind != "power" or node.args[1].kind != "number" or node.args[1].data < 2:
        return node
    base, exponent = node.args
    return base * base if exponent.data == 2 else base * base ** lift(exponent.data - 1)


def _as_power(rng: Random, node: E) -> E:
    return node.args[0] ** over(1, node.data) if node.kind == "root" else node


def _inside(rng: Random, node: E) -> E:
    if node.kind != "call":
        return node
    if node.data in ("abs", "cos"):
        return call(node.data, -node.args[0])
    return -call("sin", -node.args[0]) if node.data == "sin" else -call("ln", 1 / node.args[0])


RULES: dict[str, Callable[[Random, E], E]] = {
    "shuffled": _shuffled,
    "distributed": _distributed,
    "negated twice": _negated_twice,
    "scaled": _scaled,
    "taken apart": _apart,
    "power split": _split_power,
    "root as a power": _as_power,
    "inside": _inside,
}


def rewritten(rng: Random, node: E) -> E:
    """Rules applied at random places."""
    node = E(node.kind, tuple(rewritten(rng, part) for part in node.args), node.data)
    for rule in rng.sample(sorted(RULES), 2):
        if rng.random() < 0.5:
            node = RULES[rule](rng, node)
    return node


# --- changes ------------------------------------------------------------------------------------


def _paths(node: E, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    return [path, *(inner for index, part in enumerate(node.args) for inner in _paths(part, (*path, index)))]


def _replaced(node: E, path: tuple[int, ...], change: Callable[[E], E]) -> E:
    if not path:
        return change(node)
    parts = list(node.args)
    parts[path[0]] = _replaced(parts[path[0]], path[1:], change)
    return E(node.kind, tuple(parts), node.data)


def changed(rng: Random, node: E, names: list[str]) -> E:
    """One change at one place."""
    return _replaced(node, rng.choice(_paths(node)), lambda part: _change(rng, part, names))


def _change(rng: Random, part: E, names: list[str]) -> E:
    if part.kind == "number":
        return lift(part.data + rng.choice((1, 2)))
    if part.kind == "variable":
        return rng.choice((var(rng.choice([name for name in NAMES if name != part.data])), part + 1, -part))
    if part.kind in ("sum", "product") and len(part.args) == 2:
        return rng.choice((part.args[0], part.args[0] - part.args[1], part.args[0] * part.args[1]))
    if part.kind in ("quotient", "power"):
        return (
            rng.choice((part.args[0], E(part.kind, part.args[::-1]), -part))
            if part.kind == "quotient"
            else part.args[0]
        )
    if part.kind in ("root", "call", "negative"):
        return part.args[0]
    return rng.choice((part + 1, -part, 2 * part))


# --- families -----------------------------------------------------------------------------------


def _family(count: int) -> Callable[[Random, bool], Made | None]:
    def make(rng: Random, truth: bool) -> Made | None:
        names = rng.sample(NAMES, count)
        tree = _tree(rng, names, rng.choice((2, 3, 3)))
        if not tree.args or _plain(tree):
            return None
        other = rewritten(rng, tree) if truth else changed(rng, rewritten(rng, tree), names)
        verdicts = {equal(tree, other, positive) for positive in (True, False)}
        if verdicts != {truth}:
            return None
        label, answer = show(rng, tree, other)
        return Made("rewritten" if truth else "changed", label, answer)

    return make


def _plain(node: E) -> bool:
    """Whether only numbers are added and multiplied: such an answer repeats the question."""
    return node.kind in ("number", "sum", "product", "quotient", "negative") and all(map(_plain, node.args))


FAMILIES: Families = {
    "random constants": _family(0),
    "random expressions in one variable": _family(1),
    "random expressions in several variables": _family(3),
}
