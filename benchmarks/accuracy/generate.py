"""Makes rows with one package, in a separate environment: `python generate.py NAME [FOLDER]`.

Writes one JSON list a line: verifier, label, completion, whether it is right.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = tuple[str, Any, str, bool]

GENERATORS = (
    "basic_arithmetic", "chain_sum", "complex_arithmetic", "count_bits", "decimal_arithmetic", "decimal_chain_sum",
    "dice", "fraction_simplification", "gcd", "gsm_symbolic", "intermediate_integration", "lcm", "leg_counting",
    "polynomial_equations", "polynomial_multiplication", "power_function", "products", "simple_equations",
    "simple_geometry", "simple_integration",
)  # fmt: skip
"""Problem kinds of reasoning-gym whose answers are numbers or formulas."""
FORMULAS = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""Problem kinds with answers in Python's notation."""
ENTRIES = 20


def reasoning_gym(_: Path) -> Iterator[Row]:
    """Each generator's own answers, and the answers of the next problem if the generator's scorer refuses them."""
    import reasoning_gym as gym

    for name in GENERATORS:
        data = gym.create_dataset(name, size=ENTRIES, seed=1)
        entries = list(data)
        for entry, other in zip(entries, [*entries[1:], entries[0]], strict=True):
            label, wrong = str(entry["answer"]), str(other["answer"])
            yield "math", label, rf"So it is \boxed{{{label}}}.", True
            yield "math", label, f"The final answer is {label}", True
            if name in FORMULAS:
                yield "math", label, rf"\boxed{{{_latex(label)}}}", True
            if data.score_answer(wrong, entry) < 1 and wrong.strip() != label.strip():
                yield "math", label, rf"So it is \boxed{{{wrong}}}.", False


def _latex(answer: str) -> str:
    """The LaTeX of a formula in Python's notation."""
    import sympy

    return str(sympy.latex(sympy.sympify(answer)))


def sympy_latex(_: Path) -> Iterator[Row]:
    """The pairs of SymPy's tests of its LaTeX parser, printed again; and the next pair if it is unequal."""
    import sympy
    from sympy.parsing.tests import test_latex

    pairs = [(text, sympy.sympify(value)) for text, value in test_latex.GOOD_PAIRS]
    for (label, value), (_, other) in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        yield "math", label, rf"\boxed{{{sympy.latex(value)}}}", True
        if _unequal(value, other):
            yield "math", label, rf"\boxed{{{sympy.latex(other)}}}", False


def _unequal(one: Any, other: Any) -> bool:
    """Whether SymPy is certain that both differ. False for relations and similar objects."""
    import sympy

    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return False
    try:
        return one.free_symbols != other.free_symbols or one.doit().equals(other.doit()) is False
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return False


MAKERS = {"reasoning-gym": reasoning_gym, "sympy": sympy_latex}


def main() -> int:
    """Write the rows of one package to standard output."""
    name, *folder = sys.argv[1:]
    random.seed(0)
    for row in MAKERS[name](Path(*folder)):
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
