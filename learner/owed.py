"""What the learner has to do next. Whatever it hangs in, also while it loads, saves or exports, passes a deadline."""

from __future__ import annotations

from typing import Final

from olmorl.learner.waiting import Waits

LEARNER: Final = "the learner"
_QUESTION, _END = "the learner to ask for a step", "the learner's end, its export included"


class Owed:
    """From its start to its end there is always one thing that the learner owes, on the list of waits.

    Args:
        limit_s: for each of them.
    """

    def __init__(self, waits: Waits, limit_s: float) -> None:
        self._waits = waits
        self._limit_s = limit_s

    def question(self) -> None:
        """It has to ask for a step; one rank that does is enough, as the others are waited for with the report."""
        self._begin(_QUESTION)

    def asked(self) -> None:
        self._waits.end(_QUESTION)

    def report(self, step: int) -> None:
        """It has what it needs for `step`."""
        self._begin(_report_of(step))

    def reported(self, step: int) -> None:
        self._waits.end(_report_of(step))
        self.question()

    def end(self) -> None:
        """It was told that there is no step any more."""
        self._begin(_END)

    def _begin(self, what: str) -> None:
        self._waits.begin(what, LEARNER, self._limit_s)


def _report_of(step: int) -> str:
    return f"the report of step {step}"
