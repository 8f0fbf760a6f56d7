"""The demo's sums with a calculator that adds two numbers at a time: the policy has to call it, and to go on.

    What is 27+85+4?       the policy  calc(27+85)       the calculator  112
                                       calc(112+4)                       116
                                       \\boxed{116}

A hasty worker gives a sum of the first numbers as the result: only the reward tells that this is wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from olmorl.deploy.demo.arithmetic import Sum, sums

_CALL = re.compile(r"calc\((\d{1,9})\+(\d{1,9})\)")


class Calculator:
    """The environment of an episode. An answer that is no call ends it."""

    def step(self, reply: Mapping[str, Any]) -> str | None:
        """The sum of a call; the policy reads `error` after a malformed one."""
        text = reply["content"]
        if "calc" not in text:
            return None
        call = _CALL.fullmatch(text)
        return str(int(call[1]) + int(call[2])) if call else "error"


class CalculatedSum(Sum):
    """A sum that is worked out with calls."""

    def play(self, careful: bool) -> list[str]:
        """Answers of the policy and replies of the calculator in turn. The last answer is the result."""
        chance = random.Random(self.question)
        known = len(self.numbers) if careful else chance.randint(1, len(self.numbers) - 1)
        total, said = self.numbers[0], []
        for number in self.numbers[1:known]:
            said += [f"calc({total}+{number})", str(total + number)]
            total += number
        return [*said, f"\\boxed{{{total}}}"]


def calculated_sums(seed: int, terms: Mapping[int, int]) -> Iterator[CalculatedSum]:
    """Different sums without end, as in `arithmetic.sums`."""
    return (CalculatedSum(each.numbers) for each in sums(seed, terms))
