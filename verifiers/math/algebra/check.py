"""The checks of the math verifier in the pool's workers: read label and answer, and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from olmorl.verifiers.math.algebra.compare import same
from olmorl.verifiers.math.algebra.latex import parse
from olmorl.verifiers.math.algebra.tree import Node, Unreadable
from olmorl.verifiers.math.notation import last_side, normalise
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.words import doubtful


def warm() -> None:
    """Import the modules and fill the tables that every worker needs, before the first fork."""
    for label, answer in (("1+x", r"\frac{x^2-1}{x-1}"), (r"x\ge 3", r"[3,\infty)"), (r"\{1,2\}", r"1\pm\sqrt{2}")):
        equal((label, answer, Policy()))


def _parsed(answer: str) -> Node:
    """The tree of an answer. What stands in front of the last equals sign may be unreadable: `!5 = 44`."""
    try:
        return parse(answer)
    except Unreadable:
        ahead, equals, value = last_side(normalise(answer))
        if not equals or not value.strip() or doubtful(ahead):
            raise
        return parse(value)


def equal(check: tuple[str, str, Sequence[Any]]) -> bool | None:
    """Whether the answer equals the label under a policy; None when the label itself cannot be read."""
    label, answer, policy = check
    try:
        truth = parse(label)
    except Unreadable:
        return None
    try:
        found = _parsed(answer)
    except Unreadable:
        return False
    return same(truth, found, Policy(*policy))
