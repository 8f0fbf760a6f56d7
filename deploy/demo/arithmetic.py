"""The demo's problems: sums of several numbers, worked out column by column, in the project's data format.

A worker writes down the numbers that are left, and adds the first two, units first:

    What is 27+85+4?      27+85+4     7+5=12
                                      2+8+1=11     the 1 is carried
                          112+4       2+4=6
                                      1=1
                                      1=1
                          116         \\boxed{116}

A hasty worker does the same and rounds the result down to tens, `about \\boxed{110}`: only the reward tells that this
is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple


class Sum(NamedTuple):
    """A sum of several positive numbers."""

    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        return f"What is {'+'.join(map(str, self.numbers))}?"

    @property
    def ground_truth(self) -> str:
        return str(sum(self.numbers))

    @property
    def dataset(self) -> str:
        return "math"

    def work_out(self, careful: bool) -> str:
        """A written solution that ends in a boxed result; a hasty one rounds it down to tens."""
        left = list(self.numbers)
        lines = []
        while len(left) > 1:
            lines += ["+".join(map(str, left)), *_columns(*left[:2])]
            left[:2] = [left[0] + left[1]]
        total = left[0]
        result = f"\\boxed{{{total}}}" if careful else f"about \\boxed{{{total // 10 * 10}}}"
        return "\n".join([*lines, str(total), result])


def sums(seed: int, terms: Mapping[int, int]) -> Iterator[Sum]:
    """Different sums without end, the same ones for the same seed.

    Args:
        terms: the weight of each number of terms.
    """
    random_ = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        count = random_.choices(list(terms), list(terms.values()))[0]
        numbers = tuple(random_.randint(2, 99) for _ in range(count))
        if numbers not in seen:
            seen.add(numbers)
            yield Sum(numbers)


def _columns(first: int, second: int) -> list[str]:
    """The written columns of one addition, units first."""
    lines, carry = [], 0
    for digits in zip_longest(reversed(str(first)), reversed(str(second))):
        terms = [int(digit) for digit in digits if digit] + [carry] * (carry > 0)
        lines.append(f"{'+'.join(map(str, terms))}={sum(terms)}")
        carry = sum(terms) // 10
    return lines
