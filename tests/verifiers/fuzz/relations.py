"""Families of equations and of inequalities in several variables, whose sides may be turned, moved and multiplied."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.algebra import Terms, multiply, polynomial
from tests.verifiers.fuzz.expr import E, factorial, lift, log, root, value, var
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.numerals import decimal_text
from tests.verifiers.fuzz.pairs import Families, Made

_TURNED = {"=": "=", "<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_STRICT = {"<": r"\le", ">": r"\ge", r"\le": "<", r"\ge": ">"}


def _scaled(terms: Terms, factor: Fraction | int) -> Terms:
    return {exponents: coefficient * factor for exponents, coefficient in terms.items()}


def _relation(rng: Random, terms: Terms, names: list[str], operator: str) -> tuple[str, str]:
    """`terms operator 0` with its sides moved, turned or multiplied."""
    factor = rng.choice((1, 1, 2, 3, -1))
    terms = _scaled(terms, factor)
    operator = _TURNED[operator] if factor < 0 else operator
    moved = {exponents: f for exponents, f in terms.items() if not any(exponents) or rng.random() < 0.3}
    left = {exponents: f for exponents, f in terms.items() if exponents not in moved}
    if not left:
        left, moved = terms, {}
    one, other = show(rng, polynomial(left, names, rng), polynomial(_scaled(moved, -1), names, rng), plain=True)
    if rng.random() < 0.3:
        return "turned", f"{other} {_TURNED[operator]} {one}"
    return "moved", f"{one} {operator} {other}"


def _line(rng: Random, count: int) -> Terms:
    terms = {
        tuple(int(i == j) for j in range(count)): Fraction(rng.choice((1, -1)) * rng.randint(1, 9))
        for i in range(count)
    }
    terms[tuple([0] * count)] = Fraction(rng.choice((1, -1)) * rng.randint(1, 30))
    return terms


def _parallel(one: Terms, other: Terms) -> bool:
    """Whether one is a multiple of the other."""
    if set(one) != set(other):
        return False
    ratios = {one[exponents] / other[exponents] for exponents in one}
    return len(ratios) == 1


def _small_change(rng: Random, terms: Terms) -> tuple[str, Terms] | None:
    exponents = rng.choice(sorted(terms))
    changed = dict(terms)
    name, changed[exponents] = rng.choice(
        (("coefficient", terms[exponents] + rng.choice((1, -1, 2))), ("sign", -terms[exponents]))
    )
    changed = {key: factor for key, factor in changed.items() if factor}
    return (name, changed) if any(map(any, changed)) and not _parallel(terms, changed) else None


def equations(rng: Random, truth: bool) -> Made | None:
    """Lines, planes, parabolas and circles."""
    names = rng.choice((["x", "y"], ["x", "y", "z"], ["a", "b"], ["u", "v"]))
    terms = _line(rng, len(names))
    shape = rng.choice(("line", "parabola", "circle"))
    square = tuple(2 * int(index == 0) for index in range(len(names)))
    if shape == "parabola":
        terms[square] = Fraction(rng.choice((1, 2, -1)))
    elif shape == "circle":
        for index in range(len(names)):
            terms[tuple(2 * int(index == other) for other in range(len(names)))] = Fraction(1)
    _, label = _relation(rng, terms, names, "=")
    if truth:
        name, answer = _relation(rng, terms, names, "=")
        return Made(f"{shape} {name}", label, answer)
    changed = _small_change(rng, terms)
    if changed is None:
        return None
    return Made(f"{shape} {changed[0]}", label, _relation(rng, changed[1], names, "=")[1])


def circles(rng: Random, truth: bool) -> Made | None:
    """A circle by its centre and radius, and expanded."""
    h, k, r = rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 9)
    x, y = var("x"), var("y")
    label = (x - h) ** 2 + (y + k) ** 2
    terms: Terms = {(2, 0): Fraction(1), (0, 2): Fraction(1), (1, 0): Fraction(-2 * h), (0, 1): Fraction(2 * k)}
    left, turned, far = show(rng, label, (y + k) ** 2 + (h - x) ** 2, (x + h) ** 2 + (y + k) ** 2, plain=True)
    square, constant = r * r, h * h + k * k - r * r
    (expanded,) = show(rng, polynomial({**terms, (0, 0): Fraction(constant)}, ["x", "y"], rng), plain=True)
    (other,) = show(rng, polynomial({**terms, (0, 0): Fraction(constant + 1)}, ["x", "y"], rng), plain=True)
    right = (
        ("turned", f"{turned} = {square}"),
        ("expanded", f"{expanded} = 0"),
        ("sides turned", f"{square} = {left}"),
    )
    wrong = (
        ("radius", f"{left} = {r}"),
        ("other radius", f"{left} = {square + 1}"),
        ("centre", f"{far} = {square}"),
        ("constant", f"{other} = 0"),
        ("left side", left),
        ("right side", str(square)),
    )
    name, answer = rng.choice(right if truth else wrong)
    return Made(name, f"{left} = {square}", answer)


def roots_of_polynomials(rng: Random, truth: bool) -> Made | None:
    """A quadratic equation, factored and expanded."""
    a, b = rng.sample([n for n in range(-9, 10) if n], 2)
    x = rng.choice("xtn")
    one, other = ({(1,): Fraction(1), (0,): Fraction(-n)} for n in (a, b))
    expanded, factored = show(
        rng, polynomial(multiply(one, other), [x]), polynomial(one, [x]) * polynomial(other, [x]), plain=True
    )
    label = rng.choice((f"{expanded} = 0", f"{factored} = 0"))
    if truth:
        return Made("factored", label, rng.choice((f"{expanded} = 0", f"{factored} = 0", f"0 = {factored}")))
    shifted = {(1,): Fraction(1), (0,): Fraction(-b - 1)}
    (changed,) = show(rng, polynomial(multiply(one, shifted), [x]), plain=True)
    name, answer = rng.choice(
        (
            ("other root", f"{changed} = 0"),
            ("right side", f"{expanded} = 1"),
            ("one root", f"{x} = {a}"),
            ("left side", expanded),
        )
    )
    return Made(name, label, answer)


def assignments(rng: Random, truth: bool) -> Made | None:
    """`x = value` against the value, and against another variable's or another value."""
    names = rng.sample(("x", "y", "n", "k", "t", "a", "b", "r", "m"), 2)
    size = Fraction(rng.randint(1, 60), rng.choice((1, 1, 2, 3, 4)))
    number = rng.choice((lift(size), lift(-size), rng.randint(2, 9) * root(rng.choice((2, 3, 5, 7)))))
    text, again, doubled = show(rng, number, number, lift(2 * number.data) if number.kind == "number" else number * 2)
    label = rng.choice((f"{names[0]} = {text}", f"{names[0]}={text}"))
    if truth:
        name, answer = rng.choice(
            (("value", again), ("turned", f"{again} = {names[0]}"), ("written", f"{names[0]}={again}"))
        )
        return Made(name, label, answer)
    (negative,) = show(rng, -number)
    name, answer = rng.choice(
        (
            ("other variable", f"{names[1]} = {again}"),
            ("other value", f"{names[0]} = {doubled}"),
            ("sign", f"{names[0]} = {negative}"),
            ("no value", names[0]),
            ("inequality", f"{names[0]} > {again}"),
            ("two values", f"{names[0]} = {again}, {doubled}"),
            (
                "multiple",
                f"{names[0]} = {again}z" if "sqrt" not in again else f"{names[0]} = z",
            ),
        )
    )
    return Made(name, label, answer)


def numeric_equations(rng: Random, truth: bool) -> Made | None:
    """A statement between numbers, against itself turned, another true one and a false one."""
    b, k = rng.choice((2, 3, 4, 5, 6, 7)), rng.randint(2, 4)
    c = rng.choice([n for n in (2, 3, 4, 5, 6, 7) if n != b])

    def statement(base: int, form: str) -> tuple[E, E]:
        forms = {
            "power": (lift(base) ** k, lift(base**k)),
            "logarithm": (log(base, base**k), lift(k)),
            "root": (root(base**k, k), lift(base)),
            "factorial": (factorial(base), value(factorial(base))),
        }
        left, right = forms[form]
        return left, lift(right)

    form = rng.choice(("power", "logarithm", "root", "factorial"))
    left, right = show(rng, *statement(b, form), plain=True)
    label = f"{left} = {right}"
    if truth:
        return Made(f"{form} turned", label, rng.choice((f"{right} = {left}", f"{left}={right}")))
    other_left, other_right = show(rng, *statement(c, form), plain=True)
    name, answer = rng.choice(
        (
            ("another truth", f"{other_left} = {other_right}"),
            ("other left side", f"{other_left} = {right}"),
            ("other right side", f"{left} = {int(right) + 1}"),
        )
    )
    if name == "another truth" and b**k == c**k:
        return None
    return Made(f"{form}, {name}", label, answer)


def half_planes(rng: Random, truth: bool) -> Made | None:
    """Inequalities in two variables."""
    names = rng.choice((["x", "y"], ["a", "b"], ["m", "n"]))
    terms, operator = _line(rng, 2), rng.choice(("<", ">", r"\le", r"\ge"))
    label = _relation(rng, terms, names, operator)[1]
    if truth:
        name, answer = _relation(rng, terms, names, operator)
        return Made(name, label, answer)
    changed = _small_change(rng, terms)
    choices = [
        ("direction", _relation(rng, terms, names, _TURNED[operator])[1]),
        ("strictness", _relation(rng, terms, names, _STRICT[operator])[1]),
        ("equation", _relation(rng, terms, names, "=")[1]),
    ]
    if changed:
        choices.append((changed[0], _relation(rng, changed[1], names, operator)[1]))
    name, answer = rng.choice(choices)
    return Made(name, label, answer)


def solved_lines(rng: Random, truth: bool) -> Made | None:
    """`y = mx + b`, and its right side alone."""
    m, b = (
        Fraction(rng.choice((1, -1)) * rng.randint(2, 9), rng.choice((1, 1, 2, 3))),
        rng.choice((1, -1)) * rng.randint(1, 20),
    )
    x = var("x")
    line = m * x + b if m > 0 else -(-m * x) + b
    text, turned, steeper, higher = show(
        rng, line, b + m * x if m > 0 else b - (-m) * x, (m + 1) * x + b, line + 1, plain=True
    )
    label = f"y = {text}"
    if truth:
        return _line_made(rng, label, {"turned": f"y={turned}", "right side": text, "sides turned": f"{turned} = y"})
    wrong = {
        "slope": f"y = {steeper}",
        "intercept": f"y = {higher}",
        "other variable": f"z = {text}",
        "slope alone": decimal_text(m) if m.denominator < 3 else f"y = {steeper}",
        "inequality": f"y > {text}",
    }
    return _line_made(rng, label, wrong)


def _line_made(rng: Random, label: str, answers: dict[str, str]) -> Made:
    name = rng.choice(sorted(answers))
    return Made(name, label, answers[name])


FAMILIES: Families = {
    "equations": equations,
    "circles": circles,
    "quadratic equations": roots_of_polynomials,
    "assignments": assignments,
    "numeric equations": numeric_equations,
    "half-planes": half_planes,
    "solved lines": solved_lines,
}
