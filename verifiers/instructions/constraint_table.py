"""Finds a constraint by its id, in the tables of all sets."""

from __future__ import annotations

from difflib import get_close_matches

from olmorl.verifiers.instructions import ifeval, rlvr
from olmorl.verifiers.instructions.constraint import Constraint
from olmorl.verifiers.instructions.ifbench import count, custom, formatting, train, words

_TABLES = (ifeval.TABLE, train.TABLE, count.TABLE, custom.TABLE, formatting.TABLE, words.TABLE, rlvr.TABLE)
CONSTRAINTS: dict[str, Constraint] = {constraint.id: constraint for table in _TABLES for constraint in table}


def find(name: str) -> Constraint:
    """The constraint of that id. Raises ValueError with a similar id if there is none."""
    if name not in CONSTRAINTS:
        close = get_close_matches(name, CONSTRAINTS, 1)
        raise ValueError(f"no constraint is named {name!r:.80}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return CONSTRAINTS[name]
