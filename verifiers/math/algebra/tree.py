"""The tree that an answer is read into, and the tokens it is read from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from olmorl.verifiers.math.notation import DOLLAR, END_TEXT, ROW, TEXT, unmark
from olmorl.verifiers.math.numbers import REPEATING, decimal, repeating


class Unreadable(ValueError):
    """The text cannot be read as mathematics."""


class Node(NamedTuple):
    """One part of an answer.

    kind       value                      parts
    number     (Fraction, step or None)                     step: the value of one unit in the last decimal
    name       letters
    constant   pi, e, i or infinity
    set        R, Q, Z, N or C
    text       words
    sum                                   terms
    product                               factors
    negative, percent, degrees            one
    quotient                              above, below
    power                                 base, exponent
    call       function                   arguments
    quantity   words of the unit          one
    relation   operators                  operands, one more than operators
    list       its brackets, "", "or", "and"  items
    matrix     number of columns          entries, row by row
    union, intersection, difference       two
    builder                               element, condition
    """

    kind: str
    value: Any = None
    parts: tuple[Node, ...] = ()


def bound(node: Node) -> frozenset[str]:
    """The variable that only counts or moves within a sum, a product or a limit: the k of `\\sum_{k=1}^n`."""
    lower = node.parts[0] if node.kind == "call" and node.value in ("sum", "prod", "lim") and node.parts else None
    if lower is None or lower.kind != "relation" or lower.parts[0].kind != "name":
        return frozenset()
    return frozenset({lower.parts[0].value})


def names(node: Node) -> frozenset[str]:
    """The variables of an expression."""
    if node.kind == "name":
        return frozenset({node.value})
    found = frozenset[str]().union(*map(names, node.parts))
    return found - bound(node) if node.kind == "call" else found


def contains(node: Node, kind: str, *values: str) -> bool:
    """Whether a node of this kind, and of one of these values if any are given, is in the tree."""
    here = node.kind == kind and (not values or node.value in values)
    return here or any(contains(part, kind, *values) for part in node.parts)


def replaced(node: Node, what: Node, by: Node) -> Node:
    """The tree with one part in the place of another."""
    return by if node == what else node._replace(parts=tuple(replaced(part, what, by) for part in node.parts))


def approximated(node: Node) -> bool:
    """Whether a decimal is in the tree."""
    return (node.kind == "number" and node.value[1] is not None) or any(map(approximated, node.parts))


class Token(NamedTuple):
    """One sign of the input. A command's kind is `command` and its text is without the backslash."""

    kind: str
    text: str
    value: Any = None


END = Token("nothing", "")

FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "sinh",
    "cosh", "tanh", "coth", "sech", "csch", "arcsinh", "arccosh", "arctanh", "arccoth", "arcsech", "arccsch", "ln",
    "log", "lg", "exp", "max", "min", "gcd", "lcm", "det", "Re", "Im", "arg", "sgn", "deg", "dim", "floor", "ceil",
    "abs",
}  # fmt: skip
_OTHER_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "cotg": "cot", "cosec": "csc",
    "arctg": "arctan", "arcctg": "arccot", "asinh": "arcsinh", "arsinh": "arcsinh", "acosh": "arccosh",
    "arcosh": "arccosh", "atanh": "arctanh", "artanh": "arctanh", "arcoth": "arccoth",
}  # fmt: skip
"""Functions by their names elsewhere."""
_SPOKEN = {**_OTHER_NAMES, "inf": "infty", "infinity": "infty", "cdot": "cdot"}
_CONNECTIVES = {"and": "and", "or": "or", "&": ",", "to": ":"}
_WORDS = {*FUNCTIONS, *_SPOKEN, *_CONNECTIVES, "sqrt", "pi", "theta", "alpha", "beta", "phi", "infty"} - {
    "dim",
    "deg",
    "&",
}

_TOKEN = re.compile(
    rf"(?P<repeating>\d*\.\d*\\(?:overline|bar|dot)\s*(?:\{{\d+\}}|\d(?!\d)))"
    r"|(?P<scientific>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d{1,4}(?![\w.]))"
    r"|(?P<grouped>(?<![_^])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]))"
    r"|(?P<spaced>(?<![_^])\d{1,3}(?: \d{3})+(?:\.\d+)?(?!\d))"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<begin>\\begin\s*\{(?P<environment>[a-zA-Z]+)\*?\}(?:\s*\{[clr| ]*\})?)|(?P<end>\\end\s*\{[a-zA-Z]+\*?\})"
    rf"|(?P<text>{TEXT}[^{END_TEXT}]*{END_TEXT})"
    r"|\\(?P<command>[a-zA-Z]+|.)"
    rf"|(?P<word>(?<![a-zA-Z])(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})(?![a-zA-Z])"
    r"|(?<=\()mod(?=\s*\d))"
    rf"|(?P<letter>[^\W\d_])|(?P<row>{ROW})|(?P<sign>\S)",
    re.DOTALL,
)
_ESCAPED = {"{": "lbrace", "}": "rbrace"}
_SIGNS = {
    **dict.fromkeys(("vert", "lvert", "rvert", "Vert", "lVert", "rVert", "|"), "|"),
    "lor": "or",
    "vee": "or",
    "land": "and",
    "wedge": "and",
}
"""Commands for a sign."""
_UNIT_LETTERS = set("mgshl")
_SYMBOLS = set("JNWVAKLΩ")
"""Letters that are units if they are text behind a number."""
_CONDITIONS = {"for", "for all", "where", "with", "when", "if", "at", "such that"}
"""Words in front of a condition, which is an item of its own."""
_TAKE_DIGITS = {"frac", "binom"}
_OPENING, _CLOSING = ("(", "[", "\\{", "\\lbrace"), (")", "]", "\\}", "\\rbrace")


def tokens(text: str) -> list[Token]:
    """The tokens of normalised text. Commas group digits only outside brackets."""
    found: list[Token] = []
    position = depth = 0
    while match := _TOKEN.search(text, position):
        kind = match.lastgroup or ""
        if kind == "grouped" and depth:
            digits = match[0].partition(",")[0]
            found.append(Token("number", digits, (Fraction(digits), None)))
            position = match.start() + len(digits)
            continue
        position = match.end()
        depth += (match[0] in _OPENING) - (match[0] in _CLOSING)
        behind_number = bool(found) and found[-1].kind == "number"
        if kind == "text" and behind_number and (symbol := unmark(match[0]).strip()) in _SYMBOLS:
            found.append(Token("text", symbol))
            continue
        for token in _token(kind, match):
            found.extend(_digits(token) if found and found[-1].text in _TAKE_DIGITS else (token,))
    return found


def _digits(token: Token) -> Iterator[Token]:
    """`\\frac12` is a half: such a command takes digits one by one."""
    if token.kind != "number" or not token.text.isdigit():
        yield token
        return
    for digit in token.text:
        yield Token("number", digit, (Fraction(digit), None))


def _token(kind: str, match: re.Match[str]) -> Iterator[Token]:
    text = match[0]
    if kind == "repeating" and (cycle := REPEATING.fullmatch(text)):
        yield Token("number", text, (repeating(cycle), None))
    elif kind in ("grouped", "spaced", "number", "scientific"):
        yield Token("number", text, _number(text))
    elif kind == "begin":
        yield Token("begin", match["environment"])
    elif kind == "word":
        yield _word(text)
    elif kind == "text":
        yield _text(unmark(text).strip())
    elif kind == "command" and match["command"] in _SIGNS:
        yield Token("sign", _SIGNS[match["command"]])
    elif kind == "command":
        command = match["command"]
        yield Token("command", _ESCAPED.get(command) or _OTHER_NAMES.get(command, command))
    elif text not in (DOLLAR, "€", "£", "¥", "₹"):
        yield Token(kind, text)


def _word(word: str) -> Token:
    if word in _CONNECTIVES:
        return Token("sign", _CONNECTIVES[word])
    return Token("command", _SPOKEN.get(word, word))


def _text(words: str) -> Token:
    """The token for `\\text{}`: a connective, a function, one letter, a number, or words."""
    plain = words.strip(" ,;").casefold()
    if plain in _CONDITIONS:
        return Token("sign", ",")
    if plain in _CONNECTIVES:
        return Token("sign", _CONNECTIVES[plain])
    if words in _WORDS or words in ("lcm", "gcd"):
        return _word(words)
    if len(words) == 1 and words.isalpha() and words not in _UNIT_LETTERS:
        return Token("letter", words)
    if words.replace(".", "", 1).isdecimal():
        return Token("number", words, _number(words))
    return Token("text", words)


def _number(text: str) -> tuple[Fraction, Fraction | None]:
    mantissa, _, exponent = text.lower().partition("e")
    value = decimal(mantissa) or Fraction(0)
    scale = Fraction(10) ** int(exponent or 0)
    places = len(mantissa.partition(".")[2])
    return value * scale, scale / 10**places if "." in mantissa else None
