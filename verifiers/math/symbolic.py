"""Compares labels that our own grammar does not read, with SymPy through math-verify. Runs only in workers of a pool.

Timeouts of math-verify are off, because the pool has the deadline. No text ever reaches SymPy's own parser, which
evaluates Python. An answer that only restates the question is refused before (`answer_parser.restated`).
"""

from __future__ import annotations

import logging
import re
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy.parsing import sympy_parser

from olmorl.verifiers.math.notation import END_TEXT, ROW, TEXT, normalise

_TARGET = (LatexExtractionConfig(boxed_match_priority=-1),)
PLACES = 60
"""Decimals in which two values must agree."""
_NUMERAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)


def warm() -> None:
    """Replace SymPy's own parser and fill the grammar's tables, so that every worker is forked with them."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    sympy_parser.parse_expr = _numeral
    equal((r"\frac{x^2-1}{x-1}", "1+x"))


def _numeral(text: str, **_: Any) -> sympy.Expr:
    """Replaces SymPy's parser, which `Number(text)` calls. It reads digits or one name, and evaluates nothing."""
    if text.isidentifier():
        return sympy.Symbol(text)
    if not _NUMERAL.fullmatch(text):
        raise ValueError("text is never evaluated")
    return sympy.Float(text) if "." in text else sympy.Integer(int(text))


def equal(pair: tuple[str, str]) -> bool | None:
    """Whether the answer equals the label; None when the label cannot be read here either."""
    gold, found = (
        parse(f"${_latex(text)}$", _TARGET, fallback_mode="no_fallback", parsing_timeout=None) for text in pair
    )
    if not gold:
        return None
    if not found or _claims(gold[0]) or _claims(found[0]):
        return bool(found) and bool(gold[0] == found[0])
    precise = {"float_rounding": PLACES, "numeric_precision": 2 * PLACES}
    return bool(verify(gold[0], found[0], strict=True, timeout_seconds=None, **precise))


def _claims(read: Any) -> bool:
    """Whether it is an equation or the like, which math-verify compares by one of its sides."""
    return isinstance(read, (sympy.core.relational.Relational, sympy.logic.boolalg.Boolean))


def _latex(text: str) -> str:
    """The text in one notation, as LaTeX again."""
    return normalise(text).replace(TEXT, r"\text{").replace(END_TEXT, "}").replace(ROW, r"\\")
