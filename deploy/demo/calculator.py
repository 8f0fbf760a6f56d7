"""The demo's sums with a calculator that adds the first two numbers: the policy has to call it, and to go on.

    What is 27+85+4?       the policy  calc(27+85+4)     the calculator  112+4
                                       calc(112+4)                       116
                                       \\boxed{116}

A hasty worker gives the first number that is left as the result: only the reward tells that this is wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from olmorl.deploy.demo.arithmetic import Sum, sums

_CALL = re.compile(r"calc\((\d{1,9}(?:\+\d{1,9}){1,9})\)")


class Calculator:
    """The environment of an episode. An answer that is no call ends it."""

    def step(self, reply: Mapping[str, Any]) -> str | None:
        """What is left of the sum in a call; the policy reads `error` after a malformed one."""
        text = reply["content"]
        if "calc" not in text:
            return None
        call = _CALL.fullmatch(text)
        return _added(call[1]) if call else "error"


def _added(text: str) -> str:
    first, second, *others = map(int, text.split("+"))
    return "+".join(map(str, (first + second, *others)))


class CalculatedSum(Sum):
    """A sum that is worked out with calls."""

    def play(self, careful: bool) -> list[str]:
        """Answers of the policy and replies of the calculator in turn. The last answer is the result."""
        most = len(self.numbers) - 1
        calls = most if careful else random.Random(self.question).randint(1, most - 1)
        left = "+".join(map(str, self.numbers))
        said = []
        for _ in range(calls):
            said += [f"calc({left})", left := _added(left)]
        return [*said, f"\\boxed{{{left.partition('+')[0]}}}"]


def calculated_sums(seed: int, terms: Mapping[int, int]) -> Iterator[CalculatedSum]:
    """Different sums without end, as in `arithmetic.sums`."""
    return (CalculatedSum(each.numbers) for each in sums(seed, terms))
