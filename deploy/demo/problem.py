"""The interface of the demo's problems, and the file that they are written to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol


class Problem(Protocol):
    """One problem, with the two ways in which a worker may answer it."""

    @property
    def question(self) -> str: ...

    @property
    def ground_truth(self) -> Any: ...

    @property
    def dataset(self) -> str:
        """The verifier that scores it."""
        ...

    def work_out(self, careful: bool) -> str:
        """A written answer; a hasty one is wrong as a rule, and only the reward tells."""
        ...


def write(path: Path, some: Iterable[Problem]) -> None:
    """Write problems as rows of a data set."""
    path.write_text("".join(json.dumps(_row(problem)) + "\n" for problem in some), encoding="utf-8")


def _row(problem: Problem) -> dict[str, Any]:
    turn = {"role": "user", "content": problem.question}
    return {"messages": [turn], "ground_truth": problem.ground_truth, "dataset": problem.dataset}
