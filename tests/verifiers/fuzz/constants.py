"""Families of exact constants: radicals, powers, logarithms, trigonometry, complex numbers, counting."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from mpmath import mp

from tests.verifiers.fuzz.choose import choose, choose_near, digits_of
from tests.verifiers.fuzz.expr import (
    EULER,
    IMAGINARY,
    PI,
    E,
    binomial,
    call,
    factorial,
    floating,
    lift,
    log,
    over,
    root,
    value,
    written,
)
from tests.verifiers.fuzz.pairs import Families, Made

SQUARE_FREE = (2, 3, 5, 6, 7, 10, 11, 13, 14, 15)


def radicals(rng: Random, truth: bool) -> Made | None:
    n, p, q = rng.choice(SQUARE_FREE), rng.randint(2, 12), rng.randint(2, 12)
    label = p * root(n)
    right = {
        "drawn in": root(p * p * n),
        "drawn in half": over(p, 2) * root(4 * n),
        "turned": root(n) * p,
        "as a power": p * lift(n) ** over(1, 2),
        "over a root": over(p * n, 1) / root(n),
        "rationalised": (p * root(n * q)) / root(q),
    }
    wrong = {
        "factor": (p + 1) * root(n),
        "radicand": p * root(n + 1),
        "drawn in wrongly": root(p * n),
        "sign": -p * root(n),
        "swapped": n * root(p),
        "degree": p * root(n, 3),
        "both signs lost": lift(p * n),
    }
    return choose(rng, truth, label, right, wrong)


def surds(rng: Random, truth: bool) -> Made | None:
    """(a + b sqrt n) / c."""
    n, a, b, c = rng.choice(SQUARE_FREE), rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 9)
    label = (a + b * root(n)) / c
    norm = a * a - b * b * n
    right = {
        "turned": (b * root(n) + a) / c,
        "two fractions": over(a, c) + over(b, c) * root(n),
        "reciprocal": lift(norm) / (c * (a - b * root(n))),
        "scaled": (2 * a + 2 * b * root(n)) / (2 * c),
        "factored": over(1, c) * (a + b * root(n)),
        "drawn in": (a + root(b * b * n)) / c,
    }
    wrong = {
        "conjugate": (a - b * root(n)) / c,
        "negative": -(a + b * root(n)) / c,
        "one fraction": a + over(b, c) * root(n),
        "other denominator": (a + b * root(n)) / (c + 1),
        "parts swapped": (b + a * root(n)) / c,
        "radicand": (a + b * root(n + 1)) / c,
    }
    return choose(rng, truth, label, right, wrong)


def nested_radicals(rng: Random, truth: bool) -> Made | None:
    a, b = rng.sample(range(1, 20), 2)
    high, low = max(a, b), min(a, b)
    sign = rng.choice((1, -1))
    label = root(a + b + 2 * sign * root(a * b))
    simple = root(high) + root(low) if sign > 0 else root(high) - root(low)
    right = {
        "denested": simple,
        "drawn in": root(a + b + sign * root(4 * a * b)),
        "squared": root((root(high) + sign * root(low)) ** 2),
    }
    wrong = {
        "other sign": root(high) - sign * root(low),
        "inner sign": root(a + b - 2 * sign * root(a * b)),
        "inner term": root(a + b + 1 + 2 * sign * root(a * b)),
        "not denested": root(a + b) + sign * root(4 * a * b),
        "negative": -simple,
    }
    return choose(rng, truth, label, right, wrong)


def powers(rng: Random, truth: bool) -> Made | None:
    b, p, q = rng.choice((2, 3, 5, 6, 7, 10)), rng.randint(2, 9), rng.randint(2, 5)
    label = lift(b) ** over(p, q) if p % q else lift(b) ** p
    exponent = Fraction(p, q) if p % q else Fraction(p)
    right = {
        "root": root(lift(b) ** exponent.numerator, exponent.denominator) if exponent.denominator > 1 else lift(b) ** p,
        "split": b * lift(b) ** lift(exponent - 1),
        "other base": lift(b * b) ** lift(exponent / 2),
        "reciprocal": 1 / lift(b) ** lift(-exponent),
        "scaled exponent": lift(b) ** over(2 * exponent.numerator, 2 * exponent.denominator),
    }
    wrong = {
        "exponent": lift(b) ** lift(exponent + 1),
        "base": lift(b + 1) ** lift(exponent),
        "upside down": lift(b) ** lift(1 / exponent),
        "sign of the exponent": lift(b) ** lift(-exponent),
        "times": b * lift(exponent),
        "sign": -(lift(b) ** lift(exponent)),
    }
    return choose(rng, truth, label, right, wrong)


def logarithms(rng: Random, truth: bool) -> Made | None:
    b, a, c = rng.choice((2, 3, 5, 7, 10)), rng.randint(2, 40), rng.randint(2, 12)
    if rng.random() < 0.5:
        label = log(b, a)
        right = {
            "other base": call("ln", a) / call("ln", b),
            "powers": log(lift(b * b), a * a),
            "inverse": 1 / log(a, b),
            "split": log(b, a * c) - log(b, c),
        }
        wrong = {
            "turned": log(a, b),
            "base lost": call("ln", a),
            "argument": log(b, a + 1),
            "base": log(b + 1, a),
            "quotient": call("ln", over(a, b)),
            "sign": -log(b, a),
        }
        return choose(rng, truth, label, right, wrong)
    label = call("ln", a) + c * call("ln", b)
    right = {
        "joined": call("ln", a * b**c),
        "turned": c * call("ln", b) + call("ln", a),
        "negative": call("ln", a) - c * call("ln", over(1, b)),
    }
    wrong = {
        "sum inside": call("ln", a + b**c),
        "product": call("ln", a) * c * call("ln", b),
        "factor lost": call("ln", a * b),
        "sign": call("ln", a) - c * call("ln", b),
        "one off": call("ln", a * b**c + 1),
    }
    return choose(rng, truth, label, right, wrong)


def trigonometry(rng: Random, truth: bool) -> Made | None:
    """An exact value of sine, cosine or tangent; its truth is checked by digits."""
    name, twelfths = rng.choice(("sin", "cos", "tan")), rng.choice((1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16))
    label = call(name, over(twelfths, 12) * PI) if rng.random() < 0.5 else call(name, lift(Fraction(twelfths, 12)) * PI)
    exact = _closed_form(name, twelfths)
    if exact is None:
        return None
    pairs = [(exact, label), (label, exact)]
    label, answer = rng.choice(pairs)
    right = {"exact value": answer, "negated twice": E("negative", (-answer,)) if answer.kind != "number" else answer}
    wrong = {
        "sign": -answer,
        "other angle": call(name, over(twelfths + 1, 12) * PI),
        "other function": call("cos" if name == "sin" else "sin", over(twelfths, 12) * PI),
        "half": answer / 2,
        "inverse": 1 / answer,
    }
    return choose(rng, truth, label, right, wrong)


_FORMS = [
    lift(0), lift(1), over(1, 2), root(2) / 2, root(3) / 2, root(3), root(3) / 3, (root(6) - root(2)) / 4,
    (root(6) + root(2)) / 4, 2 - root(3), 2 + root(3),
]  # fmt: skip


def _closed_form(name: str, twelfths: int) -> E | None:
    with mp.workdps(40):
        exact = value(call(name, over(twelfths, 12) * PI))
        for form in _FORMS[1:]:
            for sign, signed in ((1, form), (-1, -form)):
                if abs(exact - sign * floating(value(form))) < mp.mpf(10) ** -30:
                    return signed
    return None


def circle_constants(rng: Random, truth: bool) -> Made | None:
    a, b = rng.randint(1, 30), rng.randint(2, 12)
    c = rng.choice((PI, EULER))
    label = over(a, b) * c if rng.random() < 0.5 else (a * c) / b
    right = {
        "turned": (c * a) / b,
        "scaled": (3 * a * c) / (3 * b),
        "summed": (a * c) / (2 * b) + (a * c) / (2 * b),
        "digits": written(digits_of(over(a, b) * c)),
    }
    wrong = {
        "factor": (a + 1) * c / b,
        "constant lost": over(a, b),
        "squared": (a * c**2) / b,
        "below": lift(a) / (b * c),
        "other constant": (a * (EULER if c is PI else PI)) / b,
        "three digits": written(digits_of(over(a, b) * c, 3)),
        "offset": (a * c) / b + over(1, 1000),
    }
    return choose_near(rng, truth, label, right, wrong)


def complex_numbers(rng: Random, truth: bool) -> Made | None:
    a, b, c, d = (rng.choice((1, -1)) * rng.randint(1, 9) for _ in range(4))
    re, im = a * c - b * d, a * d + b * c
    label = _rectangular(re, im)
    if label is None:
        return None
    norm = c * c + d * d
    right = {
        "product": (a + b * IMAGINARY) * (c + d * IMAGINARY),
        "turned": im * IMAGINARY + re,
        "quotient": (a * norm + b * norm * IMAGINARY) / (c - d * IMAGINARY),
    }
    wrong = {
        "conjugate": _rectangular(re, -im),
        "negative real part": _rectangular(-re, im),
        "swapped": _rectangular(im, re),
        "other product": (a + b * IMAGINARY) * (c - d * IMAGINARY),
        "no unit": lift(re + im),
        "one more": _rectangular(re + 1, im) or label,
    }
    return choose(rng, truth, label, right, wrong)


def _rectangular(re: int, im: int) -> E | None:
    if not re or not im:
        return None
    size = IMAGINARY if abs(im) == 1 else abs(im) * IMAGINARY
    return re + size if im > 0 else re - size


def polar(rng: Random, truth: bool) -> Made | None:
    r, (turn, re, im) = (
        rng.randint(1, 9),
        rng.choice(
            (
                (over(1, 6), root(3) / 2, over(1, 2)),
                (over(1, 4), root(2) / 2, root(2) / 2),
                (over(1, 3), over(1, 2), root(3) / 2),
                (over(2, 3), -over(1, 2), root(3) / 2),
                (over(3, 4), -(root(2) / 2), root(2) / 2),
            )
        ),
    )
    exponent = (turn.args[0] * PI * IMAGINARY if turn.args[0].data != 1 else PI * IMAGINARY) / turn.args[1]
    forms = [EULER**exponent, re + im * IMAGINARY, call("cos", turn * PI) + IMAGINARY * call("sin", turn * PI)]
    forms = [form if r == 1 else r * form for form in forms]
    label = rng.choice(forms)
    right = {"other form": rng.choice(forms)}
    wrong = {
        "conjugate": (re - im * IMAGINARY) * r,
        "radius": EULER**exponent * (r + 1),
        "swapped": (im - re * IMAGINARY) * r,
        "real part": r * re,
        "negative": -(r * EULER**exponent),
    }
    return choose(rng, truth, label, right, wrong)


def counting(rng: Random, truth: bool) -> Made | None:
    n = rng.randint(3, 14)
    k = rng.randint(1, n - 1)
    label = rng.choice((binomial(n, k), factorial(n)))
    if label.kind == "binomial":
        right = {
            "other side": binomial(n, n - k),
            "factorials": factorial(n) / (factorial(k) * factorial(n - k)),
            "Pascal": binomial(n - 1, k - 1) + binomial(n - 1, k),
            "number": lift(value(label)),
        }
        wrong = {
            "other k": binomial(n, k + 1),
            "other n": binomial(n + 1, k),
            "one more": lift(value(label) + 1),
            "permutations": factorial(n) / factorial(n - k),
            "quotient": over(n, k),
        }
    else:
        right = {"split": n * factorial(n - 1), "quotient": factorial(n + 1) / (n + 1), "number": lift(value(label))}
        wrong = {
            "neighbour": factorial(n - 1),
            "one more": lift(value(label) + 1),
            "no factorial": lift(n),
            "power": lift(n) ** n,
            "sum": factorial(n - 1) + n,
        }
    return choose(rng, truth, label, right, wrong)


FAMILIES: Families = {
    "radicals": radicals,
    "surds": surds,
    "nested radicals": nested_radicals,
    "powers": powers,
    "logarithms": logarithms,
    "trigonometric values": trigonometry,
    "pi and e": circle_constants,
    "complex numbers": complex_numbers,
    "polar forms": polar,
    "counting": counting,
}
