"""Whether an answer has the form that its question asks for: factors, a sum, lowest terms, a rational denominator.

It looks at the signs of an answer. An answer is judged only if the label has the form itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import gcd

from olmorl.verifiers.math.notation import last_side

MAX_DIVISOR = 10_000
_EXPONENT = re.compile(r"\^\s*(?:\{[^{}]*\}|-?\d)")
_NUMBER = re.compile(r"\d+")
_TIMES = re.compile(r"\^|\\cdot|\\times|[·×*]")
_FRACTION = re.compile(r"-?\s*(?:\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?|(\d+)\s*/\s*(\d+))")
_ROOT_BELOW = re.compile(r"\\[dt]?frac\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\d)\s*\{[^{}]*\\sqrt|/\s*\(?[^()]*\\sqrt|/\s*√")


def _is_prime_product(value: str) -> bool:
    bases = map(int, _NUMBER.findall(_EXPONENT.sub("", value)))
    return bool(_TIMES.search(value)) and all(map(_is_prime, bases))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, min(int(number**0.5), MAX_DIVISOR) + 1))


def _is_product(value: str) -> bool:
    """Whether a formula has brackets, and no sum outside of them."""
    depth, found = 0, False
    for sign in _EXPONENT.sub("", value).lstrip("+- "):
        depth += (sign in "([{") - (sign in ")]}")
        found = found or sign == "("
        if not depth and sign in "+-":
            return False
    return found


def _is_expanded(value: str) -> bool:
    return not _is_product(value)


def _is_reduced(value: str) -> bool:
    found = _FRACTION.fullmatch(value.strip())
    above, below = (int(part) for part in found.groups() if part) if found else (1, 1)
    return gcd(above, below) == 1


def _is_rationalized(value: str) -> bool:
    return not _ROOT_BELOW.search(value)


_FORMS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = tuple(
    (re.compile(asked, re.IGNORECASE), form)
    for asked, form in (
        (r"\bprime factori[sz]ation|\bproduct of (?:its )?prime|\bprime factors\b", _is_prime_product),
        (r"\bfactor(?:i[sz]e)?\b(?! of| in)", _is_product),
        (r"\bexpand\b", _is_expanded),
        (r"\blowest terms|\bsimplest (?:form|terms)|\b(?:simplify|reduce)\b", _is_reduced),
        (r"\brationali[sz]", _is_rationalized),
    )
)


_NOTATIONS = tuple(
    (name, re.compile(mark))
    for name, mark in (("fraction", r"\\frac|/"), ("percent", r"%|percent"), ("power", r"\^|\de[-+\d]"))
)


def notation_of(number: str) -> str:
    """How a number is written: `fraction`, `percent`, `power` or `plain`."""
    return next((name for name, mark in _NOTATIONS if mark.search(number)), "plain")


def has_other_form(question: str, label: str, answer: str) -> bool:
    """Whether a question asks for a form that the label has and the answer lacks."""
    wanted, given = (last_side(text)[2] for text in (label, answer))
    return any(asked.search(question) and form(wanted) and not form(given) for asked, form in _FORMS)
