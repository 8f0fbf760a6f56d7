"""Families of several values: tuples, sets, plus-minus, matrices, vectors, ratios."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from tests.verifiers.fuzz.expr import E, lift, over, root
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Families, Made
from tests.verifiers.fuzz.truth import equal

Rows = list[list[E]]


def _item(rng: Random) -> E:
    number = rng.choice((1, 1, -1)) * rng.randint(0, 30)
    return rng.choice(
        (
            lift(number),
            lift(number),
            lift(number),
            lift(Fraction(rng.randint(1, 20), rng.randint(2, 9))),
            rng.randint(2, 5) * root(rng.choice((2, 3, 5))),
        )
    )


def _items(rng: Random, count: int) -> list[E]:
    """Different values."""
    items: list[E] = []
    while len(items) < count:
        item = _item(rng)
        if not any(equal(item, other) for other in items):
            items.append(item)
    return items


def _texts(rng: Random, items: list[E]) -> list[str]:
    return list(show(rng, *items, plain=True))


def _altered(rng: Random, items: list[E]) -> tuple[str, list[E]]:
    """Another list: an item changed, dropped or added."""
    index = rng.randrange(len(items))
    before, item, after = items[:index], items[index], items[index + 1 :]
    changes = [
        ("item changed", [*before, item + 1 if item.kind != "number" else lift(item.data + 1), *after]),
        ("item added", [*items, lift(31 + rng.randint(0, 9))]),
    ]
    if item != lift(0):
        changes.append(("sign of an item", [*before, -item, *after]))
    if len(items) > 2:
        changes.append(("item dropped", before + after))
    return rng.choice(changes)


def tuples(rng: Random, truth: bool) -> Made | None:
    count = rng.choice((2, 2, 3, 4))
    items = _items(rng, count)
    label = _tuple(rng, items)
    if truth:
        names = {2: "(x, y)", 3: "(x, y, z)"}.get(count)
        forms = [("written", _tuple(rng, items))]
        if names:
            forms.append(("named", f"{names} = {_tuple(rng, items)}"))
        return Made(*_renamed(rng.choice(forms), label))
    change, other = rng.choice(
        (_altered(rng, items), ("reversed", items[::-1]), ("first two swapped", [items[1], items[0], *items[2:]]))
    )
    return Made(change, label, _tuple(rng, other))


def _renamed(form: tuple[str, str], label: str) -> tuple[str, str, str]:
    return form[0], label, form[1]


def _tuple(rng: Random, items: list[E]) -> str:
    opening, closing = rng.choice((("(", ")"), ("(", ")"), (r"\left(", r"\right)"), ("( ", " )")))
    return f"{opening}{rng.choice((',', ', ')).join(_texts(rng, items))}{closing}"


def sets(rng: Random, truth: bool) -> Made:
    items = _items(rng, rng.choice((2, 3, 4)))
    label = _set(rng, items)
    if truth:
        return Made("reordered", label, _set(rng, rng.sample(items, len(items))))
    change, other = _altered(rng, items)
    while len(other) >= 2 and any(equal(a, b) for i, a in enumerate(other) for b in other[:i]):
        change, other = _altered(rng, items)
    if _same_members(items, other):
        return Made("item added", label, _set(rng, [*items, lift(77)]))
    return Made(change, label, _set(rng, rng.sample(other, len(other))))


def _same_members(one: list[E], other: list[E]) -> bool:
    return len(one) == len(other) and all(any(equal(a, b) for b in other) for a in one)


def _set(rng: Random, items: list[E]) -> str:
    texts = _texts(rng, items)
    comma = rng.choice((",", ", ", r",\ "))
    forms = [rf"\{{{comma.join(texts)}\}}", rf"\left\{{{comma.join(texts)}\right\}}", ", ".join(texts)]
    forms.append(rf"{', '.join(texts[:-1])}\text{{ and }}{texts[-1]}")
    forms.append(f"{', '.join(texts[:-1])}{',' if len(texts) > 2 else ''} and {texts[-1]}")
    forms.append(r" \text{ or } ".join(f"x = {text}" for text in texts))
    forms.append(", ".join(f"x = {text}" for text in texts))
    forms.append(f"x = {', '.join(texts)}")
    return rng.choice(forms)


def points(rng: Random, truth: bool) -> Made:
    """Several points of the plane."""
    wanted = [(x, rng.randint(-9, 9)) for x in rng.sample(range(-9, 10), rng.choice((2, 2, 3)))]
    label = _points(rng, wanted)
    if truth:
        return Made("reordered", label, _points(rng, rng.sample(wanted, len(wanted))))
    (x, y), rest = wanted[0], wanted[1:]
    change, other = rng.choice(
        (
            ("coordinate", [(x, y + 1), *rest]),
            ("coordinates exchanged", [(y + 20, x), *rest]),
            ("point dropped", rest),
            ("point added", [*wanted, (x + 20, y)]),
            ("coordinates mixed", [(x, y + 11), (rest[0][0], y - 11), *rest[1:]]),
        )
    )
    return Made(change, label, _points(rng, other))


def _points(rng: Random, wanted: list[tuple[int, int]]) -> str:
    texts = [f"({x}, {y})" for x, y in wanted]
    if len(texts) == 1:
        return texts[0]
    forms = [", ".join(texts), ",".join(texts), rf"\{{{', '.join(texts)}\}}"]
    forms.append(rf"{', '.join(texts[:-1])} \text{{ and }} {texts[-1]}")
    return rng.choice(forms)


def lists_and_thousands(rng: Random, truth: bool) -> Made:
    """A list whose items would also be the groups of one number."""
    first, second = rng.randint(1, 99), rng.randint(100, 999)
    label = rng.choice((f"{first}, {second}", rf"\{{{first}, {second}\}}", f"{first} and {second}"))
    if truth:
        answer = rng.choice((f"{second}, {first}", rf"{second}\text{{ and }}{first}", rf"\{{{first}, {second}\}}"))
        return Made("reordered", label, answer)
    number = f"{first}{second}"
    answer = rng.choice(
        (number, rf"{first}{{,}}{second}", rf"{first}\,{second}", str(second), str(first), f"{first + 1}, {second}")
    )
    return Made("one number", label, answer)


def plus_minus(rng: Random, truth: bool) -> Made:
    a, b, n, c = rng.randint(0, 12), rng.randint(1, 9), rng.choice((2, 3, 5, 7)), rng.choice((1, 1, 2, 3))
    middle, size = over(a, c) if c > 1 else lift(a), b * root(n)
    plus, minus = (middle + size, middle - size) if a else (size, -size)
    left, right, first, second = show(rng, middle, size, plus, minus, plain=True)
    joint = rf"{left if a else ''} \pm {right}".strip()
    label = rng.choice((joint, f"{first}, {second}", rf"\{{{first}, {second}\}}"))
    if truth:
        forms = (
            joint,
            f"x = {joint}",
            f"{second}, {first}",
            rf"\{{{first}, {second}\}}",
            rf"{first} \text{{ and }} {second}",
        )
        return Made("both", label, rng.choice(forms))
    (other,) = show(rng, b * root(n + 4), plain=True)
    wrong = {
        "plus only": first,
        "minus only": second,
        "other root": rf"{left if a else ''} \pm {other}".strip(),
        "other middle": rf"{a + 1} \pm {right}" if c == 1 else joint + "+1",
        "swapped": rf"{right} \pm {left}" if a else first,
        "twice the same": f"{first}, {first}",
    }
    name = rng.choice(sorted(wrong))
    return Made(name, label, wrong[name])


def matrices(rng: Random, truth: bool) -> Made | None:
    height, width = rng.choice(((2, 2), (2, 2), (3, 3), (2, 3), (3, 1)))
    rows = [[_item(rng) for _ in range(width)] for _ in range(height)]
    label = _matrix(rng, rows)
    if truth:
        return Made("written", label, rng.choice((_matrix(rng, rows), f"A = {_matrix(rng, rows)}")))
    i, j = rng.randrange(height), rng.randrange(width)
    changed = [list(row) for row in rows]
    changed[i][j] = rows[i][j] + 1 if rows[i][j].kind != "number" else lift(rows[i][j].data + 1)
    name, other = rng.choice(
        (
            ("entry", changed),
            ("transposed", [list(column) for column in zip(*rows, strict=True)]),
            ("rows swapped", rows[::-1]),
        )
    )
    same = len(other) == height and all(
        equal(a, b) for one, two in zip(rows, other, strict=True) for a, b in zip(one, two, strict=len(one) == len(two))
    )
    return None if same else Made(name, label, _matrix(rng, other))


def _matrix(rng: Random, rows: Rows) -> str:
    texts = [_texts(rng, row) for row in rows]
    space = rng.choice(("", " "))
    body = rf"{space}\\{space}".join(f"{space}&{space}".join(row) for row in texts)
    kind = rng.choice(("pmatrix", "bmatrix", "pmatrix", "array"))
    if kind == "array":
        columns = "c" * len(rows[0])
        return rf"\left[\begin{{array}}{{{columns}}}{body}\end{{array}}\right]"
    return rf"\begin{{{kind}}}{space}{body}{space}\end{{{kind}}}"


def vectors(rng: Random, truth: bool) -> Made | None:
    numbers = [rng.choice((1, -1)) * rng.randint(1, 12) for _ in range(rng.choice((2, 3, 3)))]
    label = _vector(rng, numbers)
    if truth:
        return Made("written", label, _vector(rng, numbers))
    index = rng.randrange(len(numbers))
    other = list(numbers)
    name, other[index] = rng.choice((("component", numbers[index] + 20), ("sign", -numbers[index])))
    if rng.random() < 0.3:
        name, other = "reversed", numbers[::-1]
    return None if other == numbers else Made(name, label, _vector(rng, other))


def _vector(rng: Random, numbers: list[int]) -> str:
    inside = ", ".join(map(str, numbers))
    column = r"\begin{pmatrix}" + r"\\".join(map(str, numbers)) + r"\end{pmatrix}"
    mark = rng.choice((r"\mathbf{%s}", r"\hat{%s}", r"\vec{%s}", r"\hat{\mathbf{%s}}", r"\mathbf %s"))
    terms = "".join(
        f"{'-' if number < 0 else '+'}{'' if abs(number) == 1 else abs(number)}{mark % letter}"
        for number, letter in zip(numbers, "ijk", strict=False)
    )
    return rng.choice(
        (rf"\langle {inside} \rangle", rf"\left\langle {inside}\right\rangle", column, terms.removeprefix("+"))
    )


def ratios(rng: Random, truth: bool) -> Made | None:
    parts = [rng.randint(1, 9) for _ in range(rng.choice((2, 2, 3)))]
    scale = rng.randint(2, 6)
    label = _ratio(rng, parts)
    if truth:
        name, answer = rng.choice(
            (("written", _ratio(rng, parts)), ("scaled", _ratio(rng, [scale * part for part in parts])))
        )
        return Made(name, label, answer)
    changed = [parts[0] + 1, *parts[1:]]
    name, other = rng.choice((("turned", parts[::-1]), ("part changed", changed), ("part added", [*parts, parts[0]])))
    if (
        len(other) == len(parts)
        and other[0] * parts[1] == other[1] * parts[0]
        and other[0] * parts[-1] == other[-1] * parts[0]
    ):
        return None
    return Made(name, label, _ratio(rng, other))


def _ratio(rng: Random, parts: list[int]) -> str:
    return rng.choice((":", " : ")).join(map(str, parts))


FAMILIES: Families = {
    "tuples": tuples,
    "sets": sets,
    "points": points,
    "lists and thousands": lists_and_thousands,
    "plus-minus": plus_minus,
    "matrices": matrices,
    "vectors": vectors,
    "ratios": ratios,
}
