"""What the learner has to do next. Whatever it hangs in, also while it loads, saves or exports, passes a deadline."""

from __future__ import annotations

from typing import Final

from olmorl.learner.waiting import Waits
from olmorl.messages import Save, Shard, Work

LEARNER: Final = "the learner"
_QUESTION, _END = "the learner to ask for a step", "the learner's end, its export included"


class Owed:
    """From its start to its end there is one thing that the learner owes, on the list of waits, or it waits itself.

    Rank 0 speaks for all: without the others it does not come to its report.

    Args:
        limit_s: for each of them.
    """

    def __init__(self, waits: Waits, limit_s: float) -> None:
        self._waits = waits
        self._limit_s = limit_s

    def question(self) -> None:
        """It has to ask for a step."""
        self._begin(_QUESTION)

    def asked(self, rank: int) -> None:
        if rank == 0:
            self._waits.end(_QUESTION)

    def answered(self, rank: int, work: Work) -> None:
        """It has what it needs for a step, or to save first."""
        if rank == 0 and isinstance(work, Shard):
            self._begin(_report_of(work.step))
        elif rank == 0 and isinstance(work, Save):
            self.question()

    def reported(self, step: int) -> None:
        """It owes nothing until it has its answer, which may wait for the disk."""
        self._waits.end(_report_of(step))

    def end(self) -> None:
        """It was told that there is no step any more."""
        self._begin(_END)

    def _begin(self, what: str) -> None:
        self._waits.begin(what, LEARNER, self._limit_s)


def _report_of(step: int) -> str:
    return f"the report of step {step}"
