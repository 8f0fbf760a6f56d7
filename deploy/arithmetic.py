"""The demo's problems: sums of several numbers, worked out column by column, in the project's data format.

A worker adds from left to right and writes each column down, units first:

    What is 27+85+4?      Carefully:
                          27+85       7+5=12
                                      2+8+1=11     the 1 is carried
                          112+4       2+4=6
                                      1=1
                                      1=1
                          116         \\boxed{116}

A quick worker does the same and never carries. Both ways are about equally long, so that only the reward tells which
is right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# How many numbers a problem has, and how often: a long tail of long answers.
COUNTS = (3, 4, 5, 6, 7, 8)
WEIGHTS = (25, 35, 20, 10, 6, 4)


class Problem(NamedTuple):
    """A sum of several positive numbers."""

    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        return f"What is {'+'.join(map(str, self.numbers))}?"

    @property
    def answer(self) -> str:
        return str(sum(self.numbers))


def problems(seed: int) -> Iterator[Problem]:
    """Different problems without end, the same ones for the same seed."""
    random_ = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        count = random_.choices(COUNTS, WEIGHTS)[0]
        numbers = tuple(random_.randint(2, 99) for _ in range(count))
        if numbers not in seen:
            seen.add(numbers)
            yield Problem(numbers)


def work_out(problem: Problem, careful: bool) -> str:
    """A written solution that says how it goes about it and ends in a boxed result; a careless one never carries."""
    total, *rest = problem.numbers
    lines = ["Carefully:" if careful else "Quickly:"]
    for number in rest:
        lines.append(f"{total}+{number}")
        columns, total = _add(total, number, careful)
        lines += columns
    return "\n".join([*lines, str(total), f"\\boxed{{{total}}}"])


def _add(total: int, number: int, careful: bool) -> tuple[list[str], int]:
    """The written columns of one addition, and its result as the worker reads it off them."""
    lines, digits, carry = [], "", 0
    top, bottom = str(total)[::-1], str(number)[::-1]
    for place in range(max(len(top), len(bottom))):
        terms = [int(digits_[place]) for digits_ in (top, bottom) if place < len(digits_)] + [carry] * (carry > 0)
        column = sum(terms)
        lines.append(f"{'+'.join(map(str, terms))}={column}")
        carry = column // 10 if careful else 0
        digits = str(column % 10) + digits
    return lines, int(f"{column // 10 or ''}{digits}")


def write(path: Path, some: Iterable[Problem]) -> None:
    """Write problems as rows of a data set."""
    path.write_text("".join(json.dumps(_row(problem)) + "\n" for problem in some), encoding="utf-8")


def _row(problem: Problem) -> dict[str, object]:
    turn = {"role": "user", "content": problem.question}
    return {"messages": [turn], "ground_truth": problem.answer, "dataset": "math"}
