"""Families of polynomials and rational functions in one to four variables."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.choose import choose
from tests.verifiers.fuzz.expr import E, lift, var
from tests.verifiers.fuzz.pairs import Families, Made

NAMES = (
    "x",
    "y",
    "z",
    "t",
    "a",
    "b",
    "c",
    "n",
    "m",
    "k",
    "r",
    "s",
    "p",
    "q",
    "u",
    "v",
    "w",
    "B",
    "R",
    r"\alpha",
    "x_1",
    "x_{2}",
)
Terms = dict[tuple[int, ...], Fraction]
"""A polynomial: coefficients by exponents."""


def multiply(one: Terms, other: Terms) -> Terms:
    product: Terms = {}
    for left, a in one.items():
        for right, b in other.items():
            exponents = tuple(i + j for i, j in zip(left, right, strict=True))
            product[exponents] = product.get(exponents, Fraction(0)) + a * b
    return {exponents: factor for exponents, factor in product.items() if factor}


def polynomial(terms: Terms, names: list[str], rng: Random | None = None) -> E:
    """As a sum in descending order, or in any order."""
    order = sorted((exponents for exponents, factor in terms.items() if factor), reverse=True)
    if rng:
        rng.shuffle(order)
    parts = [_monomial(terms[exponents], exponents, names) for exponents in order]
    total = parts[0] if parts else lift(0)
    for part in parts[1:]:
        total = total + part
    return total


def _monomial(factor: Fraction, exponents: tuple[int, ...], names: list[str]) -> E:
    powers = [
        var(name) ** exponent if exponent > 1 else var(name)
        for name, exponent in zip(names, exponents, strict=True)
        if exponent
    ]
    if not powers:
        return lift(factor)
    body = powers[0]
    for power in powers[1:]:
        body = body * power
    if abs(factor) == 1:
        return body if factor > 0 else -body
    return factor * body if factor > 0 else -(-factor * body)


def _factor(rng: Random, count: int) -> Terms:
    """A linear factor."""
    terms: Terms = {tuple([0] * count): Fraction(rng.choice((1, -1)) * rng.randint(1, 9))}
    for index in rng.sample(range(count), min(count, rng.randint(1, 2))):
        terms[tuple(int(index == other) for other in range(count))] = Fraction(rng.choice((1, 1, -1, 2, 3)))
    return terms


def _changed(rng: Random, terms: Terms) -> tuple[str, Terms]:
    """With one small change."""
    exponents = rng.choice(sorted(terms))
    others = {other: factor for other, factor in terms.items() if other != exponents}
    raised = tuple(exponent + (index == 0) for index, exponent in enumerate(exponents))
    return rng.choice(
        (
            ("coefficient", {**terms, exponents: terms[exponents] + rng.choice((1, -1, 2))}),
            ("sign of a term", {**terms, exponents: -terms[exponents]}),
            ("term dropped", others),
            ("exponent", {**others, raised: others.get(raised, Fraction(0)) + terms[exponents]}),
        )
    )


def polynomials(rng: Random, truth: bool) -> Made | None:
    names = rng.sample(NAMES, rng.choice((1, 1, 2, 3, 4)))
    factors = [_factor(rng, len(names)) for _ in range(rng.randint(1, 3))]
    terms: Terms = {tuple([0] * len(names)): Fraction(rng.choice((1, 1, 2, -1, 3)))}
    product = lift(next(iter(terms.values())))
    for factor in factors:
        terms, product = multiply(terms, factor), product * polynomial(factor, names)
    if len(terms) < 2:
        return None
    expanded, factored = (
        polynomial(terms, names),
        E("product", product.args[1:]) if product.args[0] == lift(1) else product,
    )
    if len(factored.args) == 1:
        factored = factored.args[0]
    label = rng.choice((expanded, factored))
    right = {"factored": factored, "reordered": polynomial(terms, names, rng), "expanded": expanded}
    change, changed = _changed(rng, terms)
    wrong = {change: polynomial(changed, names, rng), "negative": polynomial({e: -f for e, f in terms.items()}, names)}
    stranger = rng.choice([name for name in NAMES if name not in names])
    wrong["variable"] = polynomial(terms, [stranger, *names[1:]])
    wrong["value"] = lift(sum(terms.values()))
    return choose(rng, truth, label, right, wrong)


def rational_functions(rng: Random, truth: bool) -> Made | None:
    x = var(rng.choice(NAMES))
    a, b, c, d = (rng.choice((1, -1)) * rng.randint(1, 9) for _ in range(4))
    label, right, wrong = rng.choice(
        (
            (
                (x + a) / (x + b),
                {
                    "divided": 1 + lift(a - b) / (x + b),
                    "scaled": (c * x + a * c) / (c * x + b * c),
                    "negated": (-x - a) / (-x - b),
                },
                {
                    "turned": (x + b) / (x + a),
                    "sign": (x - a) / (x + b),
                    "split": 1 + lift(a) / b,
                    "denominator": (x + a) / (x + b + 1),
                },
            ),
            (
                1 / (x + a) + lift(c) / (x + b),
                {
                    "joined": ((1 + c) * x + (b + a * c)) / ((x + a) * (x + b)),
                    "turned": lift(c) / (x + b) + 1 / (x + a),
                },
                {
                    "sum of both": lift(1 + c) / (2 * x + (a + b)),
                    "sign": 1 / (x + a) - lift(c) / (x + b),
                    "numerator": ((1 + c) * x + a * b) / ((x + a) * (x + b)),
                },
            ),
            (
                (x**2 + (a + b) * x + a * b) / (x + a),
                {"cancelled": x + b, "factored": ((x + a) * (x + b)) / (x + a)},
                {"other factor": x + a, "sign": x - b, "negative": -x - b, "constant": x + b + d},
            ),
        )
    )
    return choose(rng, truth, label, right, wrong)


def monomials(rng: Random, truth: bool) -> Made | None:
    """Products of letters over letters, as `ab/c` and `3a^2b`."""
    letters = rng.sample(("a", "b", "c", "x", "y", "m", "n", "k", "p", "q", "r"), rng.randint(2, 4))
    cut = rng.randint(1, len(letters) - 1)
    factor = rng.choice((1, 1, 2, 3, 7))
    powers = [rng.choice((1, 1, 1, 2, 3)) for _ in letters]

    def printed(powers: list[int], letters: list[str], factor: int) -> E:
        above, below = (
            [var(letter) ** power if power > 1 else var(letter) for letter, power in part if power]
            for part in (list(zip(letters, powers, strict=True))[:cut], list(zip(letters, powers, strict=True))[cut:])
        )
        product = E("product", (lift(factor), *rng.sample(above, len(above))))
        return product / E("product", tuple(rng.sample(below, len(below)))) if len(below) > 1 else product / below[0]

    label = printed(powers, letters, factor)
    right = {"reordered": printed(powers, letters, factor), "scaled": (2 * label.args[0]) / (2 * label.args[1])}
    index = rng.randrange(len(letters))
    wrong = {
        "power": printed([*powers[:index], powers[index] + 1, *powers[index + 1 :]], letters, factor),
        "letters exchanged": printed(powers, [letters[-1], *letters[1:-1], letters[0]], factor),
        "other letter": printed(powers, [*letters[:index], "z", *letters[index + 1 :]], factor),
        "factor": printed(powers, letters, factor + 1),
        "sign": -label,
        "upside down": label.args[1] / label.args[0],
    }
    return choose(rng, truth, label, right, wrong)


FAMILIES: Families = {
    "monomials": monomials,
    "polynomials": polynomials,
    "rational functions": rational_functions,
}
