"""Families of sets of real numbers: intervals, unions, inequalities, set builders, absolute values, quadratics."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.verifiers.fuzz.algebra import polynomial
from tests.verifiers.fuzz.expr import call, lift, root, var
from tests.verifiers.fuzz.latex import Printer, show
from tests.verifiers.fuzz.pairs import Families, Made

Bound = Fraction | None
"""None is without a bound."""


class Piece(NamedTuple):
    """The numbers from `start` to `end`."""

    start: Bound
    end: Bound
    open_start: bool
    open_end: bool


def _bound(rng: Random) -> Fraction:
    return Fraction(rng.randint(-40, 40), rng.choice((1, 1, 1, 1, 2, 3, 5)))


def _piece(rng: Random) -> Piece | None:
    start, end = sorted((_bound(rng), _bound(rng)))
    if start == end:
        return None
    piece = Piece(start, end, rng.random() < 0.5, rng.random() < 0.5)
    side = rng.random()
    if side < 0.2:
        return piece._replace(start=None, open_start=True)
    return piece._replace(end=None, open_end=True) if side < 0.4 else piece


def _text(rng: Random, bound: Fraction) -> str:
    return show(rng, lift(bound))[0]


# --- how a piece is written ---------------------------------------------------------------------


def _interval(rng: Random, piece: Piece, french: bool = False) -> str:
    low = r"-\infty" if piece.start is None else _text(rng, piece.start)
    high = rng.choice((r"\infty", r"+\infty")) if piece.end is None else _text(rng, piece.end)
    opening = ("]" if french else "(") if piece.open_start else "["
    closing = ("[" if french else ")") if piece.open_end else "]"
    if rng.random() < 0.3:
        opening, closing = rf"\left{opening}", rf"\right{closing}"
    return f"{opening}{low},{rng.choice(('', ' '))}{high}{closing}"


def _chain(rng: Random, piece: Piece, name: str) -> str:
    """`a <= x < b`, from either side."""
    less = rng.choice((r" \le ", r" \leq ", " ≤ ")), " < "
    more = rng.choice((r" \ge ", r" \geq ", " ≥ ")), " > "
    low = "" if piece.start is None else _text(rng, piece.start)
    high = "" if piece.end is None else _text(rng, piece.end)
    if low and high:
        if rng.random() < 0.7:
            return f"{low}{less[piece.open_start]}{name}{less[piece.open_end]}{high}"
        return f"{high}{more[piece.open_end]}{name}{more[piece.open_start]}{low}"
    if low:
        forms = f"{name}{more[piece.open_start]}{low}", f"{low}{less[piece.open_start]}{name}"
    else:
        forms = f"{name}{less[piece.open_end]}{high}", f"{high}{more[piece.open_end]}{name}"
    return rng.choice(forms)


def _both(rng: Random, piece: Piece, name: str) -> str:
    low, high = piece._replace(end=None, open_end=True), piece._replace(start=None, open_start=True)
    return rf"{_chain(rng, low, name)} \text{{ and }} {_chain(rng, high, name)}"


def _linear(rng: Random, piece: Piece, name: str) -> str:
    """A half-line as an inequality that has still to be solved."""
    bound = piece.start if piece.end is None else piece.end
    assert bound is not None
    factor, offset = rng.choice((2, 3, 5, -1, -2)), rng.randint(1, 9)
    open_end = piece.open_start if piece.end is None else piece.open_end
    upward = (piece.end is None) == (factor > 0)
    left, right = show(rng, factor * var(name) + offset, lift(factor * bound + offset), plain=True)
    operator = {(True, True): ">", (True, False): r"\ge", (False, True): "<", (False, False): r"\le"}[upward, open_end]
    return f"{left} {operator} {right}"


def _built(rng: Random, piece: Piece, name: str) -> str:
    bar = rng.choice((r"\mid", ":", "|"))
    inside = rng.choice((name, rf"{name} \in \mathbb{{R}}"))
    return rf"\{{{inside} {bar} {_chain(rng, piece, name)}\}}"


def _spelled(rng: Random, piece: Piece, name: str) -> tuple[str, str]:
    forms = {
        "interval": lambda: _interval(rng, piece),
        "member of an interval": lambda: rf"{name} \in {_interval(rng, piece)}",
        "chain": lambda: _chain(rng, piece, name),
        "set builder": lambda: _built(rng, piece, name),
    }
    if piece.start is None or piece.end is None:
        forms["linear"] = lambda: _linear(rng, piece, name)
    else:
        forms["both"] = lambda: _both(rng, piece, name)
        if piece.open_start or piece.open_end:
            forms["French interval"] = lambda: _interval(rng, piece, french=True)
    form = rng.choice(sorted(forms))
    return form, forms[form]()


def _changed(rng: Random, piece: Piece) -> tuple[str, Piece]:
    changes = []
    if piece.start is not None:
        changes += [
            ("start opened or closed", piece._replace(open_start=not piece.open_start)),
            ("start moved", piece._replace(start=piece.start - rng.choice((1, Fraction(1, 2))))),
        ]
    if piece.end is not None:
        changes += [
            ("end opened or closed", piece._replace(open_end=not piece.open_end)),
            ("end moved", piece._replace(end=piece.end + rng.choice((1, Fraction(1, 2))))),
        ]
    if piece.start is None or piece.end is None:
        changes.append(("other direction", Piece(piece.end, piece.start, piece.open_end, piece.open_start)))
    else:
        changes += [("end dropped", piece._replace(end=None, open_end=True))]
    return rng.choice(changes)


# --- families -----------------------------------------------------------------------------------


def intervals(rng: Random, truth: bool) -> Made | None:
    piece, name = _piece(rng), rng.choice("xtyk")
    if piece is None:
        return None
    _, label = _spelled(rng, piece, name)
    if truth:
        form, answer = _spelled(rng, piece, name)
        return Made(form, label, answer)
    if rng.random() < 0.1:
        return Made("other variable", _chain(rng, piece, name), _chain(rng, piece, "z"))
    change, other = _changed(rng, piece)
    form, answer = _spelled(rng, other, name)
    return Made(f"{change}, {form}", label, answer)


def unions(rng: Random, truth: bool) -> Made | None:
    """Two or three pieces that do not touch."""
    count = rng.choice((2, 2, 3))
    bounds = sorted({_bound(rng) for _ in range(2 * count)})
    if len(bounds) < 2 * count:
        return None
    pieces = [
        Piece(start, end, rng.random() < 0.5, rng.random() < 0.5)
        for start, end in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    if rng.random() < 0.4:
        pieces[0] = pieces[0]._replace(start=None, open_start=True)
    if rng.random() < 0.4:
        pieces[-1] = pieces[-1]._replace(end=None, open_end=True)
    label = _joined(rng, pieces)
    if truth:
        return Made("union", label, _joined(rng, pieces))
    index = rng.randrange(count)
    change, other = _changed(rng, pieces[index])
    if change in ("other direction", "end dropped", "start moved", "end moved") or rng.random() < 0.3:
        return Made("piece dropped", label, _joined(rng, pieces[:index] + pieces[index + 1 :]))
    return Made(change, label, _joined(rng, [*pieces[:index], other, *pieces[index + 1 :]]))


def _joined(rng: Random, pieces: list[Piece]) -> str:
    if rng.random() < 0.25:
        pieces = rng.sample(pieces, len(pieces))
    if rng.random() < 0.65:
        text = rng.choice((r" \cup ", r"\cup ", " ∪ ")).join(_interval(rng, piece) for piece in pieces)
        return text if rng.random() < 0.7 else rf"x \in {text}"
    return rng.choice((r" \text{ or } ", " or ")).join(_chain(rng, piece, "x") for piece in pieces)


def _inner(rng: Random, middle: Fraction, radius: Fraction, closed: bool) -> Piece:
    return Piece(middle - radius, middle + radius, not closed, not closed)


def solution_sets(rng: Random, truth: bool) -> Made | None:
    """`|x - a| < b` and quadratic inequalities against the sets that solve them."""
    a, b = sorted(rng.sample(range(-12, 13), 2))
    closed, inside, name = rng.random() < 0.5, rng.random() < 0.5, rng.choice("xt")
    if rng.random() < 0.4:
        radius = rng.randint(1, 9)
        middle = a
        a, b = middle - radius, middle + radius
        label = _absolute(rng, name, middle, radius, closed, inside)
    else:
        label = _quadratic(rng, name, a, b, closed, inside)
    low, high = Fraction(a), Fraction(b)
    change = "solved"
    if not truth:
        change, low, high, closed, inside = rng.choice(
            (
                ("ends", low, high, not closed, inside),
                ("complement", low, high, closed, not inside),
                ("start moved", low - 1, high, closed, inside),
                ("end moved", low, high + 1, closed, inside),
            )
        )
    answer = _solved(rng, name, low, high, closed, inside)
    return Made(change, *((label, answer) if rng.random() < 0.5 else (answer, label)))


def _solved(rng: Random, name: str, low: Fraction, high: Fraction, closed: bool, inside: bool) -> str:
    if inside:
        piece = Piece(low, high, not closed, not closed)
        return rng.choice((_interval(rng, piece), _chain(rng, piece, name), _built(rng, piece, name)))
    pieces = [Piece(None, low, True, not closed), Piece(high, None, not closed, True)]
    if rng.random() < 0.6:
        return r" \cup ".join(_interval(rng, piece) for piece in pieces)
    return r" \text{ or } ".join(_chain(rng, piece, name) for piece in pieces)


def _operator(closed: bool, inside: bool) -> str:
    return {(True, True): r"\le", (True, False): r"\ge", (False, True): "<", (False, False): ">"}[closed, inside]


def _absolute(rng: Random, name: str, middle: int, radius: int, closed: bool, inside: bool) -> str:
    x = var(name)
    inner = x if not middle else x - middle
    factor = rng.choice((1, 1, 2, 3))
    scaled = inner if factor == 1 else (factor * x - factor * middle if middle else factor * x)
    return f"{Printer(rng)(call('abs', scaled))} {_operator(closed, inside)} {factor * radius}"


def _quadratic(rng: Random, name: str, a: int, b: int, closed: bool, inside: bool) -> str:
    one = polynomial({(1,): Fraction(1), (0,): Fraction(-a)}, [name])
    other = polynomial({(1,): Fraction(1), (0,): Fraction(-b)}, [name])
    terms = {(2,): Fraction(1), (1,): Fraction(-a - b), (0,): Fraction(a * b)}
    operator = _operator(closed, inside)
    if rng.random() < 0.4:
        return f"{show(rng, one * other, plain=True)[0]} {operator} 0"
    if rng.random() < 0.3 and a * b:
        constant = terms.pop((0,))
        return f"{show(rng, polynomial(terms, [name]), plain=True)[0]} {operator} {-constant}"
    return f"{show(rng, polynomial(terms, [name]), plain=True)[0]} {operator} 0"


def surd_solutions(rng: Random, truth: bool) -> Made:
    """`x^2 - 2x - 1 < 0` and `x^2 < 2` against intervals whose ends are roots."""
    middle, n = rng.choice((0, 0, 1, -2, 3)), rng.choice((2, 3, 5, 6, 7, 10, 11))
    closed, inside = rng.random() < 0.5, rng.random() < 0.5
    terms = {(2,): Fraction(1), (1,): Fraction(-2 * middle), (0,): Fraction(middle * middle - n)}
    (left,) = show(rng, polynomial({key: factor for key, factor in terms.items() if factor}, ["x"]), plain=True)
    label = f"{left} {_operator(closed, inside)} 0"
    if not middle and rng.random() < 0.5:
        label = f"x^2 {_operator(closed, inside)} {n}"
    change = "solved"
    if not truth:
        change, n, closed, inside = rng.choice(
            (("ends", n, not closed, inside), ("complement", n, closed, not inside), ("root", n + 2, closed, inside))
        )
    low, high = show(rng, *((middle - root(n), middle + root(n)) if middle else (-root(n), root(n))), plain=True)
    opening, closing = ("[", "]") if closed else ("(", ")")
    if inside:
        relation = r"\le" if closed else "<"
        answer = rng.choice((f"{opening}{low}, {high}{closing}", f"{low} {relation} x {relation} {high}"))
    else:
        answer = rf"(-\infty, {low}{closing} \cup {opening}{high}, \infty)"
    return Made(change, *((label, answer) if rng.random() < 0.5 else (answer, label)))


def exceptions(rng: Random, truth: bool) -> Made:
    """All real numbers but one or two."""
    points = sorted(rng.sample(range(-15, 16), rng.choice((1, 1, 2))))

    def spelled(points: list[int]) -> str:
        bounds = [None, *map(Fraction, points), None]
        pieces = [Piece(low, high, True, True) for low, high in pairwise(bounds)]
        listed = rf"\mathbb{{R}} \setminus \{{{', '.join(map(str, points))}\}}"
        forms = [r" \cup ".join(_interval(rng, piece) for piece in pieces), listed]
        if len(points) == 1:
            forms += [rf"x \ne {points[0]}", rf"x \neq {points[0]}"]
        return rng.choice(forms)

    label = spelled(points)
    if truth:
        return Made("exception", label, spelled(points))
    return Made(
        "other exception", label, spelled([points[0] - 1, *points[1:]]) if rng.random() < 0.7 else r"\mathbb{R}"
    )


FAMILIES: Families = {
    "intervals": intervals,
    "unions": unions,
    "solution sets": solution_sets,
    "surd solutions": surd_solutions,
    "exceptions": exceptions,
}
