"""Small problems of four domains, so that every kind of verifier works in one run.

math                  What is 7+15+9?                          worked out column by column, as in `arithmetic`
ifeval                Say cat 4 times, without commas.         a careful worker keeps to the constraint
code                  Write f(x) = x*7+12 in Python.           a careful worker does not forget the last term
general-quality_ref   3 red cats are in the box. What is ...   a careful worker names number and colour
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from olmorl.deploy.demo.arithmetic import Sum
from olmorl.deploy.demo.problem import Problem

_ANIMALS = ("ant", "bee", "cat", "cow", "dog", "elk", "bear", "goat", "hen", "owl", "pig", "rat")
_COLOURS = ("black", "blue", "brown", "green", "grey", "pink", "red", "white")
_PLACES = ("barn", "box", "car", "field", "garden", "house", "lake", "tree")
_INPUTS = (0, 1, 5, 11)


class Exercise(NamedTuple):
    """A problem with both answers written out."""

    question: str
    ground_truth: Any
    dataset: str
    careful: str
    hasty: str

    def work_out(self, careful: bool) -> str:
        return self.careful if careful else self.hasty


def mixture(seed: int) -> Iterator[Problem]:
    """Different problems without end, the same ones for the same seed.

    Sums come twice as often as each other domain: a policy that cannot add yet has nothing to gain from carefulness,
    and its groups have no gradient.
    """
    chance = Random(seed)
    domains: tuple[Callable[[Random], Problem], ...] = (_sum, _instruction, _program, _sum, _question)
    seen: set[str] = set()
    while True:
        for domain in domains:
            problem = domain(chance)
            if problem.question not in seen:
                seen.add(problem.question)
                yield problem


def _sum(chance: Random) -> Problem:
    return Sum((chance.randint(2, 20), chance.randint(2, 20), chance.randint(2, 20)))


def _instruction(chance: Random) -> Problem:
    return chance.choice((_repetition, _bullets, _ending))(chance)


def _repetition(chance: Random) -> Problem:
    word, times = _thing(chance), chance.randint(2, 9)
    label = _label(
        ("keywords:frequency", {"keyword": word, "frequency": times, "relation": "at least"}),
        ("punctuation:no_comma", {}),
    )
    said = [word] * times
    return Exercise(f"Say {word} {times} times, without commas.", label, "ifeval", " ".join(said), ", ".join(said))


def _bullets(chance: Random) -> Problem:
    count, first = chance.randint(2, 5), _thing(chance)
    items = [first, *chance.sample(_ANIMALS, count - 1)]
    label = _label(("detectable_format:number_bullet_lists", {"num_bullets": count}))
    lines = [f"* {item}" for item in items]
    question = f"List {count} animals, one bullet each. Begin with the {first}."
    return Exercise(question, label, "ifeval", "\n".join(lines), "\n".join(lines[1:]))


def _ending(chance: Random) -> Problem:
    animal, place, thing = chance.choice(_ANIMALS), chance.choice(_PLACES), _thing(chance)
    label = _label(("startend:end_checker", {"end_phrase": f"in the {place}"}))
    return Exercise(
        f"Where is the {thing}? End with: in the {place}",
        label,
        "ifeval",
        f"The {thing} is in the {place}",
        f"The {thing} is with the {animal}",
    )


def _program(chance: Random) -> Problem:
    factor, term = chance.randint(2, 30), chance.randint(1, 99)
    tests = [f"assert f({x}) == {x * factor + term}" for x in _INPUTS]
    return Exercise(
        f"Write f(x) = x*{factor}+{term} in Python.",
        json.dumps(tests),
        "code",
        f"```python\ndef f(x):\n    return x*{factor}+{term}\n```",
        f"```python\ndef f(x):\n    return x*{factor}\n```",
    )


def _question(chance: Random) -> Problem:
    count, place, thing = chance.randint(2, 9), chance.choice(_PLACES), _thing(chance)
    return Exercise(
        f"{count} {thing}s are in the {place}. What is in the {place}?",
        f"There are {count} {thing}s in the {place}.",
        "general-quality_ref",
        f"There are {count} {thing}s in the {place}.",
        f"There is something in the {place}.",
    )


def _thing(chance: Random) -> str:
    return f"{chance.choice(_COLOURS)} {chance.choice(_ANIMALS)}"


def _label(*constraints: tuple[str, dict[str, Any]]) -> str:
    """A label in the published form."""
    ids, kwargs = zip(*constraints, strict=True)
    return json.dumps({"instruction_id": ids, "kwargs": kwargs})
