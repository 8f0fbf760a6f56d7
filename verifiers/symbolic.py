"""Decides by algebra whether two answers are equal. Runs in the pool's workers only: SymPy can hang or eat memory.

math-verify parses LaTeX with a grammar of its own and compares; its timeouts are off, because the pool has the
deadline. What it gets wrong is mended here. No text ever reaches SymPy's own parser, which evaluates Python.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

import sympy
import sympy.physics.units  # imported late by simplify, with SymPy's parser, which `warm` shuts
from latex2sympy2_extended.math_normalization import NormalizationConfig
from latex2sympy2_extended.sets import FiniteSet as AnswerSet
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser

from olmorl.verifiers.notation import grouped_digits, normalise, unmark
from olmorl.verifiers.numeric import clearly_different, half_line, same_set

PROBE = (r"\frac{x^2-1}{x-1}", "1+x")
"""Label and answer that every healthy worker finds equal, by algebra."""

_TARGET = (LatexExtractionConfig(normalization_config=NormalizationConfig(
    basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none"
), boxed_match_priority=-1),)  # fmt: skip
_NUMERAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")
_PLAIN_NAMES = re.compile(r"(?<![\\a-zA-Z])(pi|sin|cos|tan|ln|log|exp|infty|theta|alpha|beta)(?![a-zA-Z])")
_ROOT = re.compile(r"sqrt\s*\(")
_BARE_ROOT = re.compile(r"(?<!\\)sqrt(?=\s*\{)")
MAX_ROOTS = 16
_GLUED_PI = re.compile(r"(?<=\d)pi(?![a-zA-Z])")
_IMAGINARY = re.compile(r"(?<![\\a-zA-Z])i(?![a-zA-Z])")
_EITHER = re.compile(r"\\cup|\\lor|\\vee|\x02\s*or\s*\x03|(?<![a-zA-Z])or(?![a-zA-Z])")
_BUILDER = re.compile(r"\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid|\||:)(.*)\\\}")
_RELATION = re.compile(r"[<>]|\\le(?![a-z])|\\ge(?![a-z])")


def warm() -> None:
    """Shut SymPy's own parser, and fill the grammar's tables once, so that every worker is forked with them."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    sympy_parser.parse_expr = _numeral
    for label, answer in (
        PROBE,
        (r"\{1,2\}", r"\frac{\sqrt{2}}{2}"),
        ("(1,2)", r"x \in [1,\infty)"),
        ("x=1", r"\sin x"),
    ):
        equal((label, answer))


def _numeral(text: str, **_: Any) -> sympy.Expr:
    """Stands in for SymPy's parser, which `Number(text)` calls: it reads digits or one name, and evaluates nothing."""
    if text.isidentifier():
        return sympy.Symbol(text)
    if not _NUMERAL.fullmatch(text):
        raise ValueError("text is never evaluated")
    return sympy.Float(text) if "." in text else sympy.Integer(int(text))


def readable(label: str) -> bool:
    """Whether a label can be used: it parses, and equals itself."""
    return equal((label, label)) is True


def equal(pair: tuple[str, str]) -> bool | None:
    """Whether the answer equals the label; None when the label itself cannot be read."""
    label, answer = pair
    region = _label_region(label)
    if region is not None and (other := _region(answer)) is not None:
        return _same_region(region, other)
    gold = _parsed(label)
    if gold is None:
        return None if region is None else False
    found = _parse(answer)
    if found is None:
        return False
    gold, found = _complex(label, gold), _complex(answer, found)
    if clearly_different(gold, found):
        return False
    return bool(verify(gold, found, strict=True, timeout_seconds=None, allow_set_relation_comp=True))


def _parse(text: str) -> Any | None:
    latex = _latex(text)
    results = parse(f"${latex}$", _TARGET, fallback_mode="no_fallback", parsing_timeout=None)
    return results[0] if results else None


_parsed = lru_cache(4096)(_parse)


def _latex(text: str) -> str:
    """Normalised text in the dialect that the LaTeX grammar reads."""
    text = grouped_digits(normalise(text)).replace("\x02", r"\text{").replace("\x03", "}")
    text = _SCIENTIFIC.sub(r"\1\\cdot 10^{\2}", text)
    text = _REPEATING.sub(_as_fraction, text)
    text = text.replace("**", "^").replace("*", r"\cdot ").replace("$", "")
    text = _GLUED_PI.sub(r"\\pi ", _roots(text))
    return _PLAIN_NAMES.sub(r"\\\1", text)


def _roots(text: str) -> str:
    """`sqrt(...)` as a command with its argument in braces."""
    letters = list(text)
    for root in islice(_ROOT.finditer(text), MAX_ROOTS):
        depth = accumulate(((letter == "(") - (letter == ")") for letter in text[root.end() :]), initial=1)
        closing = next((index for index, level in enumerate(depth) if level == 0), None)
        if closing is not None:
            letters[root.end() - 1], letters[root.end() + closing - 1] = "{", "}"
    return _BARE_ROOT.sub(r"\\sqrt", "".join(letters))


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, cycle = match.groups()
    bottom = 10 ** len(fixed) * (10 ** len(cycle) - 1)
    top = int(whole + fixed + cycle) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _complex(text: str, expression: Any) -> Any:
    """Read the letter i as the imaginary unit when it is the only letter."""
    if isinstance(expression, sympy.Basic) and _IMAGINARY.search(text):
        names = {symbol.name for symbol in expression.free_symbols}
        if names == {"i"}:
            return expression.subs(dict.fromkeys(expression.free_symbols, sympy.I)).doit()
    return expression


def _region(text: str) -> tuple[str, sympy.Set] | None:
    """The real numbers that intervals or inequalities in one variable describe, with the variable's name if any."""
    text = normalise(text)
    if builder := _BUILDER.fullmatch(text):
        text = builder[1]
    parts = [part for part in _EITHER.split(text) if part.strip()]
    if len(parts) > 8 or not (len(parts) > 1 or _RELATION.search(text)):
        expression = _parsed(text)
        return ("", expression) if isinstance(expression, sympy.Interval) else None
    names: set[str] = set()
    regions = []
    for part in parts:
        expression = _parse(unmark(part))
        if isinstance(expression, sympy.Set) and not isinstance(expression, AnswerSet):
            regions.append(expression)
        elif isinstance(expression, (Relational, sympy.And)) and len(expression.free_symbols) == 1:
            names |= {symbol.name for symbol in expression.free_symbols}
            regions.append(_solutions(expression))
        else:
            return None
    return (names.pop() if names else "", sympy.Union(*regions)) if len(names) < 2 else None


def _solutions(relation: Any) -> sympy.Set:
    lines = [half_line(one) for one in (relation.args if isinstance(relation, sympy.And) else (relation,))]
    return relation.as_set() if None in lines else sympy.Intersection(*lines)


_label_region = lru_cache(4096)(_region)


def _same_region(label: tuple[str, sympy.Set], answer: tuple[str, sympy.Set]) -> bool:
    if label[0] and answer[0] and label[0] != answer[0]:
        return False
    return same_set(label[1], answer[1])
