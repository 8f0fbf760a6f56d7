"""Families in which a large term could hide a small one: sums, near-equal rationals, near-integers, high powers."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.expr import EULER, PI, E, binomial, call, factorial, lift, over, root, var
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Families, Made
from tests.verifiers.fuzz.truth import holds

DEEP = (50, 400, 1600)
"""Digits for values of up to a thousand digits."""


def _big(rng: Random, exact: bool) -> tuple[E, E]:
    """A large number, and another way to write it."""
    k = rng.randint(20, rng.choice((60, 300, 900)))
    n = rng.randint(15, rng.choice((40, 300)))
    forms = [
        (lift(2) ** (2 * k), lift(4) ** k),
        (lift(2) ** k, 2 * lift(2) ** (k - 1)),
        (lift(10) ** k, lift(2) ** k * lift(5) ** k),
        (lift(3) ** k, lift(3) ** (k - 2) * lift(9)),
        (factorial(n), n * factorial(n - 1)),
        (binomial(2 * n, n), factorial(2 * n) / (factorial(n) * factorial(n))),
        (binomial(3 * n, n), binomial(3 * n, 2 * n)),
        (lift(7) ** k * lift(11) ** k, lift(77) ** k),
    ]
    if exact:
        huge = rng.choice((5_000, 40_000, 1_000_000))
        forms += [(lift(2) ** huge, lift(4) ** (huge // 2)), (factorial(1000), 1000 * factorial(999))]
    return rng.choice(forms)


def _small(rng: Random) -> tuple[E, E]:
    """A small number, and another way to write it."""
    k = rng.randint(20, 200)
    p, q = rng.randint(1, 9), rng.randint(2, 9)
    return rng.choice(
        (
            (lift(p), over(p * q, q)),
            (root(8), 2 * root(2)),
            (over(p, q), over(p * 3, q * 3)),
            (EULER ** -lift(k), 1 / EULER**k),
            (lift(2) ** -lift(k), 1 / lift(2) ** k),
            (PI, 2 * PI / 2),
            (call("ln", 9), 2 * call("ln", 3)),
            (over(1, 10**k), lift(10) ** -lift(k)),
        )
    )


def hidden_terms(rng: Random, truth: bool) -> Made | None:
    """A large term with a small one, against the large term alone, another small one or another sign."""
    (small, same_small) = _small(rng)
    (big, same_big) = _big(rng, exact=small.kind in ("number", "quotient"))
    sign = rng.choice((1, -1))

    def total(one: E, two: E, sign: int = sign) -> E:
        return one + two if sign > 0 else one - two

    label = total(big, small)
    if truth:
        answers = {
            "rewritten": total(same_big, same_small),
            "turned": same_small + big if sign > 0 else -same_small + big,
            "rewritten small term": total(big, same_small),
        }
    else:
        answers = {
            "small term dropped": big,
            "sign of the small term": total(big, small, -sign),
            "small term doubled": total(same_big, 2 * same_small),
            "other small term": total(same_big, small) + 1,
        }
    name = rng.choice(sorted(answers))
    return _made(rng, truth, name, label, answers[name])


def tiny_terms(rng: Random, truth: bool) -> Made | None:
    """A number near a simple one, against the simple one."""
    k = rng.randint(12, 300)
    tiny, same_tiny = rng.choice(
        (
            (EULER ** -lift(k), 1 / EULER**k),
            (lift(2) ** -lift(3 * k), 1 / lift(8) ** k),
            (1 / factorial(k), over(k + 1, 1) / factorial(k + 1)),
            (1 / lift(10) ** k, lift(10) ** -lift(k)),
            (1 / binomial(4 * k, 2 * k), 1 / binomial(4 * k, 2 * k)),
        )
    )
    base = rng.choice((lift(1), lift(2), over(1, 3), root(2), PI))
    label = base - tiny
    if truth:
        name, answer = rng.choice((("rewritten", base - same_tiny), ("turned", -same_tiny + base)))
    else:
        name, answer = rng.choice(
            (
                ("tiny term dropped", base),
                ("sign of the tiny term", base + tiny),
                ("tiny term doubled", base - 2 * tiny),
            )
        )
    return _made(rng, truth, name, label, answer)


def near_rationals(rng: Random, truth: bool) -> Made | None:
    """Fractions that agree in very many digits."""
    scale = 10 ** rng.randint(7, 80)
    p, q = rng.randint(1, 999), rng.randint(2, 99)
    exact = Fraction(p, q)
    if truth:
        return Made("scaled", rf"\frac{{{p}}}{{{q}}}", rf"\frac{{{p * scale}}}{{{q * scale}}}")
    top, bottom = rng.choice(((p * scale + 1, q * scale), (p * scale, q * scale - 1), (p * scale - 1, q * scale)))
    label = rf"\frac{{{exact.numerator}}}{{{exact.denominator}}}" if exact.denominator > 1 else str(exact)
    return Made("a unit off", label, rf"\frac{{{top}}}{{{bottom}}}")


def near_integers(rng: Random, truth: bool) -> Made | None:
    """Powers of quadratic units are near integers; with the conjugate they are integers."""
    a, b, c = rng.choice(((1, 1, 2), (2, 1, 3), (3, 2, 2), (2, 1, 5), (5, 2, 6)))
    k = rng.randint(20, 200)
    unit, conjugate = a + b * root(c), a - b * root(c)
    if a * a - b * b * c not in (1, -1):
        return None
    before, trace = 2, 2 * a
    for _ in range(k - 1):
        before, trace = trace, 2 * a * trace - (a * a - b * b * c) * before
    both = unit**k + conjugate**k
    if truth:
        return _made(rng, truth, "with the conjugate", lift(trace), both)
    name, answer = rng.choice((("conjugate dropped", unit**k), ("conjugate subtracted", unit**k - conjugate**k)))
    return _made(rng, truth, name, rng.choice((lift(trace), both)), answer)


def high_powers(rng: Random, truth: bool) -> Made | None:
    """Polynomials of high degree with a small change far below their leading terms."""
    x, k, a = var(rng.choice("xtn")), rng.randint(8, 60), rng.randint(1, 20)
    label = (x + a) ** k
    if truth:
        name, answer = rng.choice(
            (
                ("split", (x + a) ** (k - 3) * (x + a) ** 3),
                ("turned", (a + x) ** k),
                ("nested", (a + x) ** (k - 1) * (x + a)),
            )
        )
    else:
        name, answer = rng.choice(
            (
                ("one more", label + 1),
                ("one less", label - 1),
                ("a term more", label + x),
                ("exponent", (x + a) ** (k + 1)),
            )
        )
    return _made(rng, truth, name, label, answer)


def nested(rng: Random, truth: bool) -> Made | None:
    """A hidden term inside a root, a logarithm or a quotient."""
    k = rng.randint(12, 120)
    square = lift(10) ** (2 * k) + 2 * lift(10) ** k + 1
    quotient = (lift(2) ** (2 * k) - 1) / (lift(2) ** k - 1)
    label, right, wrong = rng.choice(
        (
            (lift(10) ** k + 1, root(square), root(lift(10) ** (2 * k) + 2 * lift(10) ** k)),
            (lift(2) ** k + 1, quotient, lift(2) ** (2 * k) / lift(2) ** k),
            (factorial(k) + 1, factorial(k + 1) / (k + 1) + 1, factorial(k + 1) / (k + 1)),
            (2 * k * call("ln", 2), call("ln", lift(4) ** k), call("ln", lift(4) ** k + 1)),
            (lift(k), (factorial(k) + factorial(k)) / (2 * factorial(k - 1)), (factorial(k) + 1) / factorial(k - 1)),
        )
    )
    return _made(rng, truth, "nested", label, right if truth else wrong)


def _made(rng: Random, truth: bool, name: str, label: E, answer: E) -> Made | None:
    if not holds(truth, label, answer, digits=DEEP):
        return None
    return Made(name, *show(rng, label, answer))


FAMILIES: Families = {
    "hidden terms": hidden_terms,
    "tiny terms": tiny_terms,
    "near-equal rationals": near_rationals,
    "near-integers": near_integers,
    "high powers": high_powers,
    "nested magnitudes": nested,
}
