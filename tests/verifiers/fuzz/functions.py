"""Families of functions of variables: absolute values, exponentials, trigonometric identities, logarithms and roots."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.algebra import NAMES
from tests.verifiers.fuzz.choose import choose
from tests.verifiers.fuzz.expr import EULER, E, call, lift, log, root, var
from tests.verifiers.fuzz.pairs import Families, Made


def bars(inside: E) -> E:
    return call("abs", inside)


def absolute_values(rng: Random, truth: bool) -> Made | None:
    x, a = var(rng.choice(NAMES)), rng.randint(1, 9)
    label, right, wrong = rng.choice(
        (
            (bars(x), {"root": root(x**2), "negated": bars(-x)}, {"argument": x, "negative": -x, "minus": -bars(x)}),
            (root(x**2), {"bars": bars(x)}, {"argument": x, "negative": -x, "square": x**2}),
            (
                bars(x - a),
                {"turned": bars(a - x), "root": root((x - a) ** 2)},
                {"argument": x - a, "turned argument": a - x, "sign": bars(x + a), "split": bars(x) - a},
            ),
            (x, {"itself": x}, {"bars": bars(x), "root of the square": root(x**2)}),
            (a * x, {"turned": x * a}, {"bars": a * bars(x), "root of the square": root(a * a * x**2)}),
            (a * bars(x), {"inside": bars(a * x), "root": root(a * a * x**2)}, {"argument": a * x, "negative": -a * x}),
            (x**3, {"split": x * x**2}, {"bars": bars(x) ** 3, "root": root(x**6)}),
            (bars(x) ** 2, {"square": x**2}, {"negative": -(x**2), "linear": bars(x)}),
        )
    )
    if not truth and len(wrong) > 1 and rng.random() < 0.3 and label.kind != "call":
        wrong = {"negative": -label}
    return choose(rng, truth, label, right, wrong)


def exponentials(rng: Random, truth: bool) -> Made | None:
    x = var(rng.choice(NAMES))
    b, k, a = rng.choice((2, 3, 5)), rng.randint(2, 5), rng.randint(1, 9)
    label, right, wrong = rng.choice(
        (
            (
                lift(b) ** (x + k),
                {"split": b**k * lift(b) ** x},
                {"added": lift(b) ** x + b**k, "factor": k * lift(b) ** x, "exponent": lift(b) ** (k * x)},
            ),
            (
                lift(b * b) ** x,
                {"squared": (lift(b) ** x) ** 2, "other base": lift(b) ** (2 * x)},
                {
                    "product": 2 * lift(b) ** x,
                    "square": lift(b) ** (x**2),
                    "base": lift(2 * b) ** x if b != 2 else lift(5) ** x,
                },
            ),
            (
                EULER ** (a * x),
                {"power": (EULER**x) ** a, "reciprocal": 1 / EULER ** (-a * x)},
                {
                    "product": a * EULER**x,
                    "sign": EULER ** (-a * x),
                    "sum": EULER ** (x + a),
                    "other base": lift(3) ** (a * x),
                },
            ),
            (
                lift(b) ** x * lift(b) ** (k * x),
                {"joined": lift(b) ** ((k + 1) * x)},
                {"multiplied": lift(b) ** (k * x**2), "bases": lift(b * b) ** ((k + 1) * x)},
            ),
            (
                lift(b) ** (x + 1) - lift(b) ** x,
                {"factored": (b - 1) * lift(b) ** x},
                {"cancelled": lift(b), "one less": lift(b) ** x - 1, "more": (b + 1) * lift(b) ** x},
            ),
        )
    )
    return choose(rng, truth, label, right, wrong)


def identities(rng: Random, truth: bool) -> Made | None:
    x, n = var(rng.choice("xytab")), var(rng.choice("nmk"))
    sine, cosine = call("sin", x), call("cos", x)
    label, right, wrong = rng.choice(
        (
            (
                call("sin", 2 * x),
                {"double angle": 2 * sine * cosine},
                {"linear": 2 * sine, "other": 2 * cosine, "square": sine**2},
            ),
            (
                call("cos", 2 * x),
                {"double angle": 1 - 2 * sine**2, "other": 2 * cosine**2 - 1, "both": cosine**2 - sine**2},
                {"sign": 2 * sine**2 - 1, "one square": 1 - sine**2, "linear": 2 * cosine},
            ),
            (
                sine**2,
                {"other square": 1 - cosine**2, "half angle": (1 - call("cos", 2 * x)) / 2},
                {"sign": 1 + cosine**2, "other function": cosine**2, "no square": sine},
            ),
            (call("tan", x), {"quotient": sine / cosine}, {"upside down": cosine / sine, "sine": sine}),
            (
                call("sin", 3 * x),
                {"triple angle": 3 * sine - 4 * sine**3},
                {"signs": 3 * sine + 4 * sine**3, "factor": 4 * sine - 3 * sine**3},
            ),
            ((n**2 + n) / 2, {"product": (n * (n + 1)) / 2}, {"other product": (n * (n - 1)) / 2, "square": n**2 / 2}),
        )
    )
    return choose(rng, truth, label, right, wrong)


def positive_forms(rng: Random, truth: bool) -> Made | None:
    """Logarithms and roots of positive variables."""
    x, y = (var(name) for name in rng.sample(("x", "y", "a", "b", "t", "n"), 2))
    k = rng.randint(2, 6)
    label, right, wrong = rng.choice(
        (
            (
                call("ln", x) + call("ln", y),
                {"joined": call("ln", x * y)},
                {
                    "sum inside": call("ln", x + y),
                    "quotient": call("ln", x / y),
                    "product": call("ln", x) * call("ln", y),
                },
            ),
            (
                k * call("ln", x),
                {"inside": call("ln", x**k)},
                {"factor inside": call("ln", k * x), "power outside": call("ln", x) ** k},
            ),
            (
                log(k, x),
                {"other base": call("ln", x) / call("ln", k)},
                {"turned": log(x, k), "base": log(k + 1, x), "argument": log(k, y)},
            ),
            (
                1 / root(x),
                {"rationalised": root(x) / x, "power": x ** -lift(Fraction(1, 2))},
                {"root": root(x), "no root": 1 / x, "sign": -1 / root(x)},
            ),
            (root(x), {"power": x ** lift(Fraction(1, 2))}, {"degree": root(x, 3), "square": x**2, "half": x / 2}),
            (
                root(x, 3) ** 2,
                {"power": x ** lift(Fraction(2, 3)), "inside": root(x**2, 3)},
                {"turned": x ** lift(Fraction(3, 2)), "square root": root(x**3)},
            ),
        )
    )
    return choose(rng, truth, label, right, wrong, positive=True)


FAMILIES: Families = {
    "absolute values": absolute_values,
    "exponentials": exponentials,
    "identities": identities,
    "logarithms and roots of variables": positive_forms,
}
