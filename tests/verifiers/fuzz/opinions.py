"""What math-verify and plain SymPy say about the same pairs, each in a process that is killed at its deadline."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from olmorl.verifiers.check_outcomes import Done
from olmorl.verifiers.pool.pool import Pool
from tests.verifiers.fuzz.pairs import Pair

TIMEOUT_S = 3.0
NAMES = ("math-verify", "SymPy")


class Opinion(NamedTuple):
    """Whether a checker finds a pair equal; None when it reads nothing, raises, or is too late."""

    name: str
    pair: Pair
    equal: bool | None


async def ask(pairs: Iterable[Pair]) -> list[Opinion]:
    """Both opinions of each pair."""
    module = __name__
    pool = Pool(1, TIMEOUT_S, retries=0, preload=(f"{module}:warm",))
    await pool.start()
    try:
        return [await _ask(pool, name, pair) for pair in pairs for name in NAMES]
    finally:
        await pool.stop()


async def _ask(pool: Pool, name: str, pair: Pair) -> Opinion:
    task = "math_verify_equal" if name == "math-verify" else "sympy_equal"
    outcome = await pool.run(
        f"{__name__}:{task}", (pair.label, pair.completion if name == "math-verify" else pair.answer)
    )
    return Opinion(name, pair, outcome.value if isinstance(outcome, Done) else None)


# --- in the worker ------------------------------------------------------------------------------


def warm() -> None:
    """Import before workers are forked."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    math_verify_equal(("1", "1"))
    sympy_equal(("1", "1"))
    warnings.simplefilter("ignore")  # after SymPy, which sets its own filter


def math_verify_equal(check: tuple[str, str]) -> bool | None:
    """math-verify as its page shows it, its own timeouts off."""
    from math_verify import parse, verify

    label, answer = check
    gold, found = parse(f"${label}$", parsing_timeout=None), parse(answer, parsing_timeout=None)
    return bool(verify(gold, found, timeout_seconds=None)) if gold and found else None


def sympy_equal(check: tuple[str, str]) -> bool | None:
    """SymPy's own LaTeX parser, and whether the difference simplifies to 0."""
    import sympy
    from sympy.parsing.latex import parse_latex

    label, answer = (_plain(parse_latex(text, backend="lark")) for text in check)
    if isinstance(label, sympy.Expr) and isinstance(answer, sympy.Expr):
        return bool(sympy.simplify(label - answer) == 0)
    return bool(label == answer)


def _plain(parsed: Any) -> Any:
    """The value of an assignment."""
    import sympy

    return parsed.rhs if isinstance(parsed, sympy.Eq) and parsed.lhs.is_Symbol else parsed
