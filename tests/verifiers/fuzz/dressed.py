"""Families of a number with something around it, which changes what it says, or does not."""

from __future__ import annotations

from random import Random

from tests.verifiers.fuzz.expr import PI, E, lift, root, var
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Families, Made


def _number(rng: Random) -> int:
    return rng.randint(2, 10 ** rng.choice((1, 2, 3)))


def dressed_numbers(rng: Random, truth: bool) -> Made:
    """A whole number as the label."""
    n = _number(rng)
    right = {
        "remark": rf"{n} \text{{ (exactly)}}",
        "approximation": rf"\approx {n}",
        "equality": f"x = {n}",
        "equality in words": rf"\text{{The answer is }} {n}",
        "text": rf"\mathbf{{{n}}}",
        "set": rf"\{{{n}\}}",
        "member": rf"x \in \{{{n}\}}",
        "parentheses": f"({n})",
        "delimiters": rf"\left({n}\right)",
        "unit": rf"{n}\text{{ units}}",
        "root of the square": rf"\sqrt{{{n * n}}}",
        "modulus": rf"|{-n}|",
        "working": rf"{n - 1} + 1 = {n}",
        "full stop": f"{n}.",
        "quotient": rf"\frac{{{2 * n}}}{{2}}",
        "floor": rf"\lfloor {n}.7 \rfloor",
    }
    wrong = {
        "variable": f"{n}x",
        "imaginary": f"{n}i",
        "pi": rf"{n}\pi",
        "root": rf"\sqrt{{{n * n + 1}}}",
        "square": f"{n}^2",
        "negative": f"-{n}",
        "inequality": f"x > {n}",
        "inequality to the left": f"{n} < x",
        "alternative": rf"{n} \text{{ or }} {n + 1}",
        "alternative in words": f"{n} or {n + 3}",
        "list": f"{n}, {n + 1}",
        "set": rf"\{{{n}, {n + 1}\}}",
        "pair": f"({n}, {n + 1})",
        "interval": f"[{n}, {n + 1}]",
        "not equal": rf"x \ne {n}",
        "power of ten": rf"{n} \times 10^2",
        "million": f"{n} million",
        "sum": f"{n} + x",
        "reciprocal": rf"\frac{{1}}{{{n}}}",
        "base": f"{n}_{{{rng.choice((11, 12, 16))}}}" if n > 9 else f"{n}x",
        "denied": f"not {n}",
        "refused": f"{n} is wrong",
        "range": f"between {n} and {n + 2}",
        "at least": f"at least {n}",
        "decimal": f"{n}.5",
        "plus-minus": rf"\pm {n}",
        "ceiling": rf"\lceil {n}.2 \rceil",
        "modulus of another": rf"|{-n - 1}|",
        "equation of another": f"{n} - 1 = {n - 1}",
        "ratio": f"{n}:{n + 1}",
        "infinite": rf"{n}\infty",
        "denominator": f"{n}/{n + 1}",
    }
    answers = right if truth else wrong
    name = rng.choice(sorted(answers))
    return Made(name, str(n), answers[name])


_SPOKEN_WRONG = (
    "not {n}", "between {m} and {n}", "{n} or {m}", "either {m} or {n}", "less than {n}", "more than {n}",
    "at most {n}", "at least {n}", "greater than {n}", "minus {n}", "negative {n}", "{n} squared", "{n} factorial",
    "the square root of {n}", "half of {n}", "twice {n}", "{n} hundred", "{n} dozen", "{n} thousand", "{n} million",
    "x plus {n}", "{n} more than x", "{n} over {m}", "{n} and a half", "{n} to the power of 2", "{n} times x",
    "{m} and {n}", "{n} less than {m}", "{n} divided by {m}", "a multiple of {n}", "a divisor of {n}",
    "the reciprocal of {n}", "{n} minus x", "{m}, {n}", "{n} modulo {m}", "{n} choose 2", "unknown, but not {n}",
    "one more than {n}", "{n} plus {m}", "any number but {n}", "wrong if you say {n}", "the number after {n}",
    "{n} tens", "{n} halves", "{n} percent of {m}", "base {n}",
)  # fmt: skip
"""What is said of a number and is not the number."""
_SPOKEN_RIGHT = (
    "{n}", "exactly {n}", "just {n}", "simply {n}", "therefore {n}", "equal to {n}", "{n} in total", "{n} units",
    "a total of {n}", "{n} altogether", "the number {n}", "{n} of them", "{n}, as we wanted", "{n} as required",
    "{n} people", "{n} different ways",
)  # fmt: skip


def spoken_numbers(rng: Random, truth: bool) -> Made:
    """Words around a whole number of two digits or more: in a box, and in a sentence."""
    n, m = rng.sample(range(11, 990), 2)
    phrase = rng.choice(_SPOKEN_RIGHT if truth else _SPOKEN_WRONG)
    said = phrase.format(n=n, m=m)
    if rng.random() < 0.4 and not truth:
        return Made(phrase, str(n), rng.choice((said, rf"\text{{{said}}}")))
    sentence = rng.choice(
        ("The answer is {}.", "**Answer:** {}", "#### {}", "<answer>{}</answer>", "The final answer is {}.")
    )
    return Made(phrase, str(n), sentence.format(said), sentence=True)


def measured_formulas(rng: Random, truth: bool) -> Made:
    """An exact value with a unit behind it."""
    a, n = rng.randint(2, 15), rng.choice((2, 3, 5, 6, 7))
    value: E = rng.choice((a * root(n), a * PI, (a * PI) / n if a % n else a * PI, a + root(n), lift(a) * PI * root(n)))
    text, again, other, squared = show(rng, value, value, value + 1, value * value, plain=True)
    unit, alien = rng.sample(("cm", "meters", "km", "inches", "feet"), 2)
    joined = again if "+" not in again else rf"({again})"
    label = rng.choice((text, rf"{text}\text{{ {unit}}}" if "+" not in text else text))
    if truth:
        forms = (
            ("no unit", again),
            ("unit", rf"{joined}\text{{ {unit}}}"),
            ("roman unit", rf"{joined}\ \mathrm{{{unit}}}"),
        )
        return Made(*_made(rng.choice(forms), label))
    wrong = [("other value", rf"{other}"), ("squared", squared), ("negative", f"-{joined}")]
    if "text" in label:
        wrong.append(("other unit", rf"{joined}\text{{ {alien}}}"))
    return Made(*_made(rng.choice(wrong), label))


def _made(form: tuple[str, str], label: str) -> tuple[str, str, str]:
    return form[0], label, form[1]


def named_results(rng: Random, truth: bool) -> Made:
    """Functions, sequences and letters with an index, equal to a formula."""
    name = rng.choice(
        (
            "f(x)",
            "g(x)",
            "a_n",
            "S_n",
            r"P(x)",
            r"f^{-1}(x)",
            r"f'(x)",
            r"V_{\max}",
            r"m_{\text{max}}",
            "u_1",
            r"\frac{dy}{dx}",
        )
    )
    x = var("n" if name.endswith("_n") else "x")
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    formula = rng.choice((a * x + b, x**2 + a * x, a * x**2 - b, (x + a) / (x + b + 10), a * x**3))
    text, again, other, negative = show(rng, formula, formula, formula + 1, -formula, plain=True)
    label = f"{name} = {text}"
    if truth:
        return Made(
            *_made(
                rng.choice((("same", f"{name}={again}"), ("formula", again), ("turned", f"{again} = {name}"))), label
            )
        )
    wrong = (
        ("other formula", f"{name} = {other}"),
        ("negative", f"{name} = {negative}"),
        ("no name", other),
        ("name only", name),
    )
    return Made(*_made(rng.choice(wrong), label))


def systems(rng: Random, truth: bool) -> Made | None:
    """Values of several variables."""
    names = rng.choice(("xy", "ab", "xyz", "mn", "pqr"))
    numbers = [rng.choice((1, 1, -1)) * rng.randint(0, 25) for _ in names]
    label = _system(rng, names, numbers)
    if truth:
        return Made("written", label, _system(rng, names, numbers))
    index = rng.randrange(len(names))
    moved = list(numbers)
    moved[index] += rng.choice((1, -1, 5))
    if rng.random() < 0.3:
        name, number = rng.choice(list(zip(names, numbers, strict=True)))
        return Made("one of them", label, rng.choice((f"{name} = {number}", str(number))))
    change, other = rng.choice((("value", moved), ("values turned", numbers[::-1])))
    return None if other == numbers else Made(change, label, _system(rng, names, other))


def _system(rng: Random, names: str, numbers: list[int]) -> str:
    each = [f"{name} = {number}" for name, number in zip(names, numbers, strict=True)]
    point = f"({', '.join(map(str, numbers))})"
    turned = rng.sample(each, len(each))
    forms = [", ".join(each), ", ".join(turned), rf"{', '.join(each[:-1])} \text{{ and }} {each[-1]}", point]
    forms.append(f"({', '.join(names)}) = {point}")
    return rng.choice(forms)


def spoken_logarithms(rng: Random, truth: bool) -> Made:
    r"""`\log_6 216` and `100 \log_2 3`: no braces, no parentheses."""
    base, k, factor, argument = rng.randint(2, 9), rng.randint(2, 4), rng.randint(2, 100), rng.choice((3, 5, 7, 11, 13))
    if rng.random() < 0.5:
        label, right, wrong = (
            rf"\log_{base} {base**k}",
            (str(k), rf"\log_{{{base}}}({base**k})"),
            (str(k + 1), rf"\log_{base + 1} {base**k}", str(k - 1)),
        )
    else:
        base = rng.choice((2, 6))
        label = rf"{factor} \log_{base} {argument}"
        right = (
            rf"{factor}\log_{{{base}}}({argument})",
            rf"{factor} \frac{{\ln {argument}}}{{\ln {base}}}",
            rf"{factor}\cdot\log_{base} {argument}",
        )
        wrong = (
            rf"{factor + 1} \log_{base} {argument}",
            rf"\log_{base} {argument}",
            rf"{factor} \log_{base} {argument + 1}",
            str(factor),
            rf"{factor}\ln {argument}",
        )
    return Made("braces" if truth else "changed", label, rng.choice(right if truth else wrong))


FAMILIES: Families = {
    "dressed numbers": dressed_numbers,
    "spoken numbers": spoken_numbers,
    "measured formulas": measured_formulas,
    "named results": named_results,
    "systems": systems,
    "logarithms without braces": spoken_logarithms,
}
