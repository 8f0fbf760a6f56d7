"""The grammar of answers, with its precedence. Each token is read once, or twice after a plus-minus.

listing   item, item; item and item or item
item      relation, twice if it has a plus-minus
relation  measured = measured < measured ...
measured  sets, then a unit
sets      sum union sum ...
sum       product + product - product ...
product   factor * factor / factor factor ...
factor    primary, then its powers, factorials, degrees and percents
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise

from olmorl.verifiers.math.algebra.tree import END, Node, Token, Unreadable

MAX_DEPTH = 40
"""Brackets within brackets."""
MAX_STEPS = 4000
"""Primaries read, repetitions included."""
MAX_HEIGHT = 100
"""The largest height of the tree."""

_SEPARATORS = {",", ";", "and", "or"}
_COMPARISONS = {"<", ">", "<=", ">="}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", ":": ":", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "equiv": "=", "in": "in",
    "to": "to", "sim": "sim", "cong": "cong", "parallel": "parallel", "perp": "perp", "subset": "subset", "mid": "|",
    "subseteq": "subseteq", "Rightarrow": "=>", "implies": "=>", "notin": "notin", "iff": "<=>", "rightarrow": "to",
    "longrightarrow": "to", "Longrightarrow": "=>",
    "mapsto": "to", "prec": "prec", "succ": "succ", "triangleq": "=",
}  # fmt: skip
_SETS = {
    "cup": "union", "bigcup": "union", "cap": "intersection", "setminus": "difference", "backslash": "difference",
}  # fmt: skip
_TIMES = ("*", "cdot", "times", "ast")
_OVER = ("/", "div", "over")
_SIGNS = {"+", "-", "pm", "mp"}
_TRANSPOSED = (Node("name", "T"), Node("name", "\\top"), Node("name", "\\intercal"))
_DEGREES = ("degree", "degrees")
_MODULO = ("pmod", "bmod", "mod")
_CLOSING = {")", "]", "}", "rbrace", "rangle", "rfloor", "rceil", "rvert", "rVert"}
_NO_OPERAND = {*_RELATIONS, *_SETS, *_TIMES, *_OVER, *_SIGNS, *_MODULO, *_CLOSING, "choose", "hline"}


class Grammar:
    """Reads tokens from left to right, and never looks further than three ahead."""

    def __init__(self, stream: list[Token]) -> None:
        self._stream = stream
        self._at = 0
        self._depth = 0
        self._steps = 0
        self._sign = 1
        self._ambiguous = False
        self._bars = 0
        """Absolute values that are open: a bar closes them."""
        self._conditional = False
        """Whether the next bar starts a condition, directly within set braces."""
        self._primaries: dict[str, Callable[[Token], Node]] = {}
        """How a token of each kind begins a value."""

    # --- tokens ---

    @property
    def _next(self) -> Token:
        return self._peek(0)

    def _peek(self, ahead: int) -> Token:
        place = self._at + ahead
        return self._stream[place] if place < len(self._stream) else END

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _is(self, texts: Collection[str]) -> bool:
        return self._next.kind in ("sign", "command") and self._next.text in texts

    def _accept(self, *texts: str) -> bool:
        found = self._is(texts)
        self._at += found
        return found

    def _expect(self, *texts: str) -> str:
        if not self._is(texts):
            raise Unreadable(f"{' or '.join(texts)} expected, not {self._next.text or 'the end'}")
        return self._take().text

    def _raw(self, start: int) -> str:
        """The tokens from `start` up to here, as text without the braces around it."""
        text = "".join(token.text for token in self._stream[start : self._at])
        return text[1:-1] if text[:1] in ("{", "(") and text[-1:] in ("}", ")") else text

    # --- from the answer down to its factors ---

    def answer(self) -> Node:
        """The whole of it."""
        items, separators = self._listing(expand=True)
        if self._next is not END:
            raise Unreadable(f"{self._next.text!r} where it should end")
        joiner = _joiner(items, {separator for _, separator in separators})
        items = _grouped(items, separators)
        tree = items[0] if len(items) == 1 else Node("list", joiner, tuple(items))
        if _height(tree) > MAX_HEIGHT:
            raise Unreadable("too deep")
        return tree

    def _listing(self, expand: bool) -> tuple[list[Node], list[tuple[int, str]]]:
        """Items up to the closing bracket, and the separators, each with the number of items before it.

        Args:
            expand: a plus-minus makes two of one.
        """
        items: list[Node] = []
        separators: list[tuple[int, str]] = []
        while True:
            items += self._both_signs() if expand else [self._relation()]
            separator = ""
            while self._is(_SEPARATORS):
                separator = max(separator, self._take().text)
            if separator:
                separators.append((len(items), separator))
            if not separator or self._next is END or self._is(_CLOSING):
                return items, separators

    def _both_signs(self) -> list[Node]:
        start, outer = self._at, (self._sign, self._ambiguous)
        self._sign, self._ambiguous = 1, False
        items = [self._relation()]
        if self._ambiguous:
            self._at, self._sign = start, -1
            items.append(self._relation())
        self._sign, self._ambiguous = outer
        return items

    def _relation(self) -> Node:
        operands, operators = [self._measured()], list[str]()
        while self._is(_RELATIONS) or (self._conditional and not self._bars and self._is("|")):
            operators.append(_RELATIONS.get(self._next.text, "|"))
            self._at += 1
            operands.append(self._measured())
        return Node("relation", tuple(operators), tuple(operands)) if operators else operands[0]

    def _measured(self) -> Node:
        """A value with the unit behind it, if there is one."""
        node = self._sets()
        bracket = self._next.text == "(" and self._peek(1).text in _MODULO
        if bracket or self._is(_MODULO):
            return self._modulo(node, bracket)
        if self._next.kind != "text" or node.kind == "text":
            return node
        words = ""
        while self._next.kind == "text" or self._is(("^", "/", "cdot")):
            token = self._take()
            words += {"^": "^", "cdot": " "}.get(token.text, token.text)
            if token.text == "^":
                words += digits(self._argument())
        return Node("degrees", None, (node,)) if words in _DEGREES else Node("quantity", words, (node,))

    def _modulo(self, node: Node, bracket: bool) -> Node:
        """`7 \\bmod 4` is the number 3; `3 \\pmod 4` a class of numbers."""
        if self._next.text == "bmod":
            self._at += 1
            return Node("call", "mod", (node, self._product()))
        self._at += 1 + bracket
        node = Node("quantity", f"mod {digits(self._primary())}", (node,))
        if bracket:
            self._expect(")")
        return node

    def _sets(self) -> Node:
        node = self._sum()
        while self._is(_SETS):
            node = Node(_SETS[self._take().text], None, (node, self._sum()))
        return node

    def _sum(self) -> Node:
        terms = [self._signed()]
        while self._is(_SIGNS):
            terms.append(self._signed())
        return terms[0] if len(terms) == 1 else Node("sum", None, tuple(terms))

    def _signed(self) -> Node:
        negative = False
        while self._is(_SIGNS):
            sign = self._take().text
            if sign in ("pm", "mp"):
                self._ambiguous = True
                negative ^= (self._sign < 0) == (sign == "pm")
            else:
                negative ^= sign == "-"
        node = self._product()
        return Node("negative", None, (node,)) if negative else node

    def _product(self) -> Node:
        node = self._factor()
        while True:
            if self._accept(*_TIMES):
                node = times(node, self._unary())
            elif self._accept(*_OVER):
                node = Node("quotient", None, (node, self._unary()))
            elif self._accept("choose"):
                node = Node("call", "binom", (node, self._product()))
            elif self._operand_follows():
                if self._next.kind == "number" and node.kind == "number":
                    raise Unreadable("two numbers in a row")
                node = times(node, self._factor())
            else:
                return node

    def _unary(self) -> Node:
        if self._accept("-"):
            return Node("negative", None, (self._unary(),))
        self._accept("+")
        return self._factor()

    def _operand_follows(self) -> bool:
        token = self._next
        if token.kind == "command":
            return token.text not in _NO_OPERAND
        if token.text == "|":
            return not self._bars and not self._conditional
        if token.text == "(" and self._peek(1).text in _MODULO:
            return False
        return token.text in ("(", "[", "{") or token.kind in ("number", "letter", "begin")

    def _factor(self) -> Node:
        node = self._primary()
        while True:
            if self._accept("!"):
                node = Node("call", "double factorial" if self._accept("!") else "factorial", (node,))
            elif self._accept("%"):
                node = Node("percent", None, (node,))
            elif self._accept("^"):
                node = self._raised(node)
            else:
                return node

    def _raised(self, base: Node) -> Node:
        if self._accept("circ"):
            return Node("degrees", None, (base,))
        if self._accept("prime", "'"):
            return Node("call", "prime", (base,))
        if side := self._side():
            return Node("call", f"side {side}", (base,))
        exponent = self._argument()
        if exponent in _TRANSPOSED and base.kind in ("list", "matrix"):
            return _transposed(base)
        while self._accept("^"):
            exponent = self._raised(exponent)
        return Node("power", None, (base, exponent))

    def _side(self) -> str:
        """The sign of a one-sided limit, `0^+`. Empty if more than a sign is raised."""
        braced = self._next.text == "{"
        sign, after = self._peek(braced), self._peek(1 + braced)
        if sign.text not in ("+", "-") or (after.text != "}" if braced else self._begins_value(after)):
            return ""
        self._at += 1 + 2 * braced
        return sign.text

    def _begins_value(self, token: Token) -> bool:
        return token.kind in ("number", "letter", "command", "text", "begin") or token.text in ("(", "[", "{", "|")

    def _argument(self) -> Node:
        """The argument of a command, a power or an index: a group, or one token, which may have a sign."""
        if self._accept("-"):
            return Node("negative", None, (self._argument(),))
        self._accept("+")
        return self._primary()

    def _primary(self) -> Node:
        self._steps += 1
        self._depth += 1
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            raise Unreadable("too deep or too long")
        token = self._take()
        read = self._primaries.get(token.kind)
        if read is None:
            raise Unreadable(f"{token.text or 'the end'} where a value should be")
        node = read(token)
        self._depth -= 1
        return node


def _transposed(node: Node) -> Node:
    """A matrix with its rows as columns; a row in brackets as a column."""
    if node.kind == "list":
        return Node("matrix", 1, node.parts)
    width, height = node.value, len(node.parts) // node.value
    return Node(
        "matrix", height, tuple(node.parts[row * width + column] for column in range(width) for row in range(height))
    )


def _joiner(items: list[Node], separators: set[str]) -> str:
    """`or`, or `and` if both inequalities must hold, or nothing for a list."""
    if "or" in separators:
        return "or"
    compared = all(item.kind == "relation" and not _COMPARISONS.isdisjoint(item.value) for item in items)
    return "and" if separators == {"and"} and compared else ""


def _grouped(items: list[Node], separators: list[tuple[int, str]]) -> list[Node]:
    """`x=1, y=2; x=3, y=4` as two tuples."""
    breaks = [place for place, separator in separators if separator in (";", "or") and place < len(items)]
    groups = [items[start:end] for start, end in pairwise((0, *breaks, len(items)))]
    strong = any(separator == ";" for _, separator in separators)
    fits = len(groups) > 1 and len({len(group) for group in groups}) == 1 and len(groups[0]) > 1
    fits = fits and not any(map(_names_one, groups))
    if not fits or not (strong or all(item.kind == "relation" for item in items)):
        return items
    return [Node("list", "()", tuple(group)) for group in groups]


def _names_one(group: list[Node]) -> bool:
    """Whether all equations of a group give one variable: `x = 1, x = -1` is no point."""
    return all(item.kind == "relation" for item in group) and len({item.parts[0] for item in group}) == 1


def times(left: Node, right: Node) -> Node:
    """A product, flat; a sign of percent or degrees behind its last factor is of all of it."""
    if right.kind in ("percent", "degrees"):
        return Node(right.kind, None, (times(left, right.parts[0]),))
    factors = left.parts if left.kind == "product" else (left,)
    return Node("product", None, (*factors, right))


def digits(node: Node) -> str:
    """A whole number as text, for exponents of units and moduli; names as they are."""
    if node.kind == "negative":
        return "-" + digits(node.parts[0])
    if node.kind == "list" and len(node.parts) == 1:
        return digits(node.parts[0])
    return str(node.value[0] if node.kind == "number" else node.value)


def _height(tree: Node) -> int:
    """Levels of a tree, which may be too many to recurse."""
    level, height = [tree], 0
    while level:
        level = [part for node in level for part in node.parts]
        height += 1
    return height
