"""Reads one answer, in LaTeX or as typed, into a tree. Linear time, bounded depth; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from olmorl.verifiers.math.algebra.grammar import Grammar, times
from olmorl.verifiers.math.algebra.tree import END, FUNCTIONS, Node, Token, Unreadable, replaced, tokens
from olmorl.verifiers.math.notation import ROW, normalise

UNDONE = {"sum", "prod", "int", "iint", "iiint", "oint", "lim", "limsup", "liminf"}
"""Commands that ask for something to be computed."""
_COUNTED = {"sum", "prod"}
_CONSTANTS = {"pi": "pi", "infty": "infinity"}
_ANGLES = {"angle", "measuredangle"}
_PREFIXES = {*_ANGLES, "triangle", "Delta", "odot", "square", "partial", "nabla"}
_ACCENTS = {"overline", "bar", "tilde", "widehat", "widetilde", "dot", "ddot", "vec", "overleftarrow", "not"}
_PAIRS = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}
_MATRICES = {"matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"}
_LINES = {"cases", "aligned", "align", "gathered", "split", "dcases", "rcases"}
"""Environments of lines, which are items of a list."""
MAX_NAME = 40
"""Tokens of a name such as `E(XY)`."""
_APPLIED = set("fghFGH")
"""Letters that are functions when a bracket follows."""
_EQUAL_NAMES = {"varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "ell": "l", "dotsc": "ldots"}
_DIFFERENTIAL = re.compile(r"d(\^?2?)([a-zA-Z]?)")
_BEFORE_INTERVAL = (
    "^",
    "[=,;{:]",
    "[=,;{:] ",
    r"\\cup",
    r"\\cup ",
    r"\\cap ",
    r"\\in",
    r"\\in ",
    r"\\setminus ",
    "or ",
)
_INTERVAL = re.compile(
    rf"(?:{'|'.join(f'(?<={before})' for before in _BEFORE_INTERVAL)})([\[\]])([^\[\],;]+[,;][^\[\],;]+)([\[\]])"
)
"""Two ends between square brackets of either direction."""


@lru_cache(4096)
def parse(text: str) -> Node:
    """Read an answer as written. Raises Unreadable."""
    return _Parser(tokens(_usual_brackets(normalise(text)))).answer()


def _usual_brackets(text: str) -> str:
    """The text with intervals such as `]2, 5[` in the usual brackets."""
    return _INTERVAL.sub(_usual, text) if "]" in text or "[" in text else text


def _usual(match: re.Match[str]) -> str:
    opening, inside, closing = match.groups()
    blank = not all(map(str.strip, inside.replace(";", ",").split(",")))
    if opening + closing == "[]" or blank or inside.count("(") != inside.count(")"):
        return match[0]
    return f"{'(' if opening == ']' else '['}{inside}{')' if closing == '[' else ']'}"


class _Parser(Grammar):
    """The grammar, with every form that a value can begin with."""

    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        self._primaries = {
            "number": self._number, "letter": self._letter, "command": self._command, "sign": self._bracket,
            "begin": self._environment, "text": lambda token: Node("text", token.text.casefold()),
        }  # fmt: skip
        self._commands: dict[str, Callable[[], Node]] = {
            "frac": self._fraction, "sqrt": self._root, "lbrace": self._set, "langle": self._vector,
            "emptyset": lambda: Node("list", "{}"), "mathbb": self._number_set,
            "binom": lambda: Node("call", "binom", (self._argument(), self._argument())),
        }  # fmt: skip

    def _number(self, token: Token) -> Node:
        """A number; a fraction behind a whole one is added to it."""
        node = Node("number", token.value)
        if token.value[1] is not None or not token.text.isdigit():
            return node
        if self._next.kind == "number" and self._peek(1).text == "/" and self._peek(2).kind == "number":
            above, _, below = self._take(), self._take(), self._take()
            return Node("sum", None, (node, _over(Node("number", above.value), Node("number", below.value))))
        if self._accept("frac"):
            fraction = self._fraction()
            return Node("sum", None, (node, fraction)) if _proper(fraction) else times(node, fraction)
        return node

    def _letter(self, token: Token) -> Node:
        return self._named(token.text)

    def _named(self, name: str) -> Node:
        """A variable with its index and primes, or a function of the bracket after it."""
        if self._is(("_",)):
            start = self._at + 1
            self._skip()
            name += f"_{self._raw(start)}"
            if name.endswith("_"):
                raise Unreadable("an index that is empty")
        while self._accept("'"):
            name += "'"
        if name in ("e", "i"):
            return Node("constant", name)
        return self._applied(name) or Node("name", name)

    def _applied(self, name: str) -> Node | None:
        """The letter of a function with its argument behind it: `f(x)`, `f^{-1}(x)`, `P(x) =`, `= P(x)`."""
        known = name.rstrip("'") in _APPLIED
        start = self._at
        if known and [self._peek(ahead).text for ahead in range(5)] == ["^", "{", "-", "1", "}"]:
            self._at += 5
            name += "^-1"
        bracket = self._next.text == "("
        named = (
            bracket
            and not name.startswith("\\")
            and (
                self._names_a_value()
                or (
                    self._peek(2).text == ")"
                    and (self._peek(3) is END and start > 1 and self._stream[start - 2].text == "=")
                )
            )
        )
        if (bracket and (known or named)) or (known and self._next.text == "{" and self._peek(1).text == "("):
            return Node("call", f"apply {name}", (self._primary(),))
        self._at = start
        return None

    def _names_a_value(self) -> bool:
        """Whether the bracket ahead closes in front of an equals sign, as in `E(XY) = 30`, and begins an item."""
        if self._at > 1 and self._stream[self._at - 2].text not in (",", ";", "="):
            return False
        depth = 0
        for ahead in range(MAX_NAME):
            text = self._peek(ahead).text
            depth += (text == "(") - (text == ")")
            if not depth:
                return self._peek(ahead + 1).text == "="
        return False

    # --- brackets ---

    def _bracket(self, token: Token) -> Node:
        if token.text == "|":
            self._bars += 1
            node = self._sum()
            self._expect("|")
            self._bars -= 1
            return Node("call", "abs", (node,))
        if token.text not in ("(", "[", "{"):
            raise Unreadable(f"{token.text!r} where a value should be")
        items, closing = self._inside(("}",) if token.text == "{" else (")", "]"), expand=False)
        if len(items) == 1 and token.text + closing in ("()", "[]", "{}"):
            lowered = token.text == "{" and items[0].kind in ("name", "constant") and self._is(("_",))
            return self._named(items[0].value) if lowered else items[0]
        return Node("list", "" if token.text == "{" else token.text + closing, items)

    def _inside(
        self, closing: tuple[str, ...], expand: bool, conditional: bool = False
    ) -> tuple[tuple[Node, ...], str]:
        """Items up to a closing bracket, and that bracket. Bars inside it are counted separately."""
        outer = self._bars, self._conditional
        self._bars, self._conditional = 0, conditional
        items = [] if self._is(closing) else self._listing(expand)[0]
        self._bars, self._conditional = outer
        return tuple(items), self._expect(*closing)

    def _set(self) -> Node:
        items, _ = self._inside(("rbrace",), expand=True, conditional=True)
        head = items[0] if items else None
        if head is not None and head.kind == "relation" and not {"|", ":"}.isdisjoint(head.value):
            return _builder(head, items[1:])
        return Node("list", "{}", items)

    def _vector(self) -> Node:
        return Node("list", "()", self._inside(("rangle",), expand=False)[0])

    # --- commands ---

    def _command(self, token: Token) -> Node:
        name = _EQUAL_NAMES.get(token.text, token.text)
        if name in self._commands:
            return self._commands[name]()
        if name in _CONSTANTS:
            return Node("constant", _CONSTANTS[name])
        if name in FUNCTIONS or (name == "Gamma" and self._next.text == "("):
            return self._function(name)
        if name in _PAIRS:
            closing, function = _PAIRS[name]
            return Node("call", function, self._inside((closing,), expand=False)[0])
        if name in UNDONE or name in _PREFIXES:
            return self._opaque(name)
        return self._accented(name) if name in _ACCENTS else self._named(f"\\{name}")

    def _fraction(self) -> Node:
        start = self._at
        above = self._argument()
        top, start = self._raw(start), self._at
        below = self._argument()
        bottom = self._raw(start)
        if (over := _DIFFERENTIAL.fullmatch(top)) and _DIFFERENTIAL.match(bottom) and bottom != "d":
            return (
                Node("name", f"{top}/{bottom}")
                if over[2]
                else Node("call", "derivative", (Node("name", bottom), self._product()))
            )
        return _over(above, below)

    def _root(self) -> Node:
        index = self._inside(("]",), expand=False)[0] if self._accept("[") else (Node("number", (2, None)),)
        return Node("call", "root", (self._argument(), *index))

    def _number_set(self) -> Node:
        start = self._at
        self._argument()
        name = self._raw(start)
        while self._is(("^", "_")):
            start = self._at
            self._skip()
            name += self._raw(start)
        return Node("set", name.replace("{", "").replace("}", ""))

    def _skip(self) -> None:
        """Go past a raised or lowered place that may hold a sign alone."""
        self._at += 1
        depth = 0
        while self._next is not END:
            depth += (self._next.text == "{") - (self._next.text == "}")
            self._at += 1
            if depth <= 0:
                return

    def _function(self, name: str) -> Node:
        """`\\sin^2 2x`, `\\log_2(8)`, `\\max(1, 2)`."""
        base = (self._base(),) if self._accept("_") else ()
        exponent = self._argument() if self._accept("^") else None
        if name == "lg":
            name, base = "log", (Node("number", (10, None)),)
        if exponent is not None and exponent == Node("negative", None, (Node("number", (1, None)),)):
            name, exponent = f"arc{name}", None
        argument = self._primary() if self._is(("(", "{", "lbrace", "|")) else self._bare_argument()
        arguments = argument.parts if argument.kind == "list" else (argument,)
        call = Node("call", name, (*arguments, *base))
        return call if exponent is None else Node("power", None, (call, exponent))

    def _base(self) -> Node:
        """The base of a logarithm. Of digits without braces, `\\log_28`, only the first is lowered."""
        digits, behind = self._next.text, self._peek(1)
        if self._next.kind != "number" or len(digits) < 2 or self._begins_value(behind):
            return self._argument()
        self._stream[self._at : self._at + 1] = tokens(digits[0]) + tokens(digits[1:])
        return self._argument()

    def _bare_argument(self) -> Node:
        """The factors up to the next sign, function or bracket."""
        node = self._factor()
        while self._operand_follows() and self._next.text not in FUNCTIONS and self._next.text not in ("(", "["):
            if self._next.text == "vec" or (self._next.text == "e" and self._peek(1).text == "^"):
                break
            node = times(node, self._factor())
        return node

    def _opaque(self, name: str) -> Node:
        """A sum, limit, angle or the like: its bounds and its argument."""
        lower, upper = list[Node](), list[Node]()
        while self._is(("_", "^")):
            (lower if self._take().text == "_" else upper).append(self._argument())
        if name in _ANGLES and not self._operand_follows():
            return Node("name", "angle")
        start = self._at
        of = self._product()
        letters = self._raw(start)
        if name in _ANGLES and letters.isalpha():
            return Node("name", f"angle {min(letters, letters[::-1])}")
        if (
            name in _COUNTED
            and not upper
            and len(lower) == 1
            and lower[0].kind == "relation"
            and lower[0].value == (">=",)
        ):
            lower, upper = [lower[0]._replace(value=("=",))], [Node("constant", "infinity")]
        return _with_index(Node("call", name, (*lower, *upper, of)))

    def _accented(self, name: str) -> Node:
        """A line over two points is their segment; otherwise an accent makes another name."""
        start = self._at
        inner = self._argument()
        letters = self._raw(start)
        return inner if len(letters) > 1 and letters.isupper() else Node("name", f"{name} {letters}")

    def _environment(self, token: Token) -> Node:
        if token.text in _LINES:
            return self._lines(token.text == "cases")
        determinant = token.text in ("vmatrix", "Vmatrix")
        if not determinant and token.text not in _MATRICES:
            raise Unreadable(f"an environment {token.text}")
        rows = self._rows()
        matrix = Node("matrix", len(rows[0]), tuple(cell for row in rows for cell in row))
        return Node("call", "det", (matrix,)) if determinant else matrix

    def _lines(self, cases: bool) -> Node:
        """Equations below each other as a list; values with their conditions as a list of pairs."""
        if not cases:
            end = next((at for at in range(self._at, len(self._stream)) if self._stream[at].kind == "end"), self._at)
            self._stream[self._at : end] = [token for token in self._stream[self._at : end] if token.text != "&"]
        rows = self._rows()
        if len(rows[0]) == 1:
            return rows[0][0] if len(rows) == 1 else Node("list", "", tuple(row[0] for row in rows))
        return Node("list", "cases", tuple(Node("list", "()", tuple(row)) for row in rows))

    def _rows(self) -> list[list[Node]]:
        """The rows of an environment, up to its end."""
        outer = self._bars
        self._bars = 0
        rows = [self._row()]
        while self._next.text == ROW:
            self._at += 1
            if self._next.kind != "end":
                rows.append(self._row())
        self._bars = outer
        if self._take().kind != "end" or len({len(row) for row in rows}) > 1:
            raise Unreadable("a matrix with rows of several lengths, or without an end")
        return rows

    def _row(self) -> list[Node]:
        while self._accept("hline"):
            pass
        cells = [self._cell()]
        while self._accept("&"):
            cells.append(self._cell())
        return cells

    def _cell(self) -> Node:
        """A value or relation, with a comma or a word such as "if" in front of it."""
        while self._is((",", "and")):
            self._at += 1
        node = self._relation()
        self._accept(",", "and")
        return node


def _over(above: Node, below: Node) -> Node:
    return Node("quotient", None, (above, below))


def _with_index(node: Node) -> Node:
    """A sum that counts with i, which is no imaginary unit there."""
    counter = node.parts[0].parts[0] if node.parts[0].kind == "relation" else None
    return replaced(node, counter, Node("name", "i")) if counter == Node("constant", "i") else node


def _proper(node: Node) -> bool:
    """Whether it is a fraction of two numbers below 1."""
    if node.kind != "quotient" or any(part.kind != "number" for part in node.parts):
        return False
    above, below = node.parts
    return bool(above.value[0] < below.value[0])


def _builder(relation: Node, more: tuple[Node, ...]) -> Node:
    """`{x | 0 < x, x < 2}`: the element before the first bar, and the conditions after it."""
    split = next(index for index, operator in enumerate(relation.value) if operator in ("|", ":"))
    condition = Node("relation", relation.value[split + 1 :], relation.parts[split + 1 :])
    conditions = (condition if condition.value else condition.parts[0], *more)
    head = Node("relation", relation.value[:split], relation.parts[: split + 1]) if split else relation.parts[0]
    return Node("builder", None, (head, conditions[0] if not more else Node("list", "", conditions)))
