"""Writes rows of known layouts as rows for the learner: messages, ground_truth, dataset, and columns that are kept."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.deploy.data_sets.layouts import QuestionAnswer
from olmorl.errors import DataError

Rows = Iterator[tuple[str, dict[str, Any]]]
"""Rows with their places."""
TAGS = (
    "Think first, then answer. Write your thoughts between <think> and </think>, and then nothing but the answer "
    "between <answer> and </answer>."
)
"""The system prompt of `Asked.tags`."""


@dataclass
class RowCounts:
    """Counts the written, repeated, over-long and unusable rows."""

    written: int = 0
    repeated: int = 0
    over_long: int = 0
    unusable: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why the first unusable rows cannot be used, with file and line."""
    columns: dict[str, None] = field(default_factory=dict)
    """All columns that were seen, in their order."""
    lines: list[str] = field(default_factory=list)
    """More for people."""

    def refuse(self, place: str, reason: str) -> None:
        """Count an unusable row."""
        self.unusable += 1
        if len(self.reasons) < 10:
            self.reasons.append(f"{place}: {reason}")


class Asked(NamedTuple):
    """In which words a question is asked, and what scores the answer."""

    verifier: str = "math"
    template: str = "{question}"
    """The user's turn."""
    tags: bool = False
    """A system prompt asks for `<think>` and `<answer>`, and rewards for both come first."""
    one_shot: bool = False
    """The first question stands before every other one, with its solution as the answer."""
    keep: Sequence[str] = ()
    """Columns that are kept."""
    fits: Callable[[str], bool] = lambda solution: True
    """Whether a solution is short enough."""


def convert(
    rows: Rows, take: Callable[[Mapping[str, Any]], QuestionAnswer], asked: Asked, counts: RowCounts
) -> Iterator[dict[str, Any]]:
    """Rows in the learner's format. Repeated questions are left out; unusable rows are counted and reported."""
    seen: set[str] = set()
    example: list[dict[str, str]] | None = None
    for place, row in rows:
        counts.columns |= dict.fromkeys(row)
        try:
            found = take(row)
            if asked.one_shot and not found.solution:
                raise ValueError("it has no solution to show as an example")
        except ValueError as error:
            counts.refuse(place, str(error))
            continue
        if found.question in seen:
            counts.repeated += 1
            continue
        seen.add(found.question)
        if not asked.fits(found.solution):
            counts.over_long += 1
        elif asked.one_shot and example is None:
            example = _example(found, asked)
        else:
            counts.written += 1
            yield _row(found, asked, example or []) | {
                name: row[name] for name in asked.keep if row.get(name) is not None
            }


def _row(found: QuestionAnswer, asked: Asked, example: list[dict[str, str]]) -> dict[str, Any]:
    system = [{"role": "system", "content": TAGS}] if asked.tags else []
    verifier = found.verifier or asked.verifier
    return {
        "messages": [*system, *example, _turn(found, asked)],
        "ground_truth": ["", "", found.answer] if asked.tags else found.answer,
        "dataset": ["format", "tag_count", verifier] if asked.tags else verifier,
    }


def _turn(found: QuestionAnswer, asked: Asked) -> dict[str, str]:
    return {"role": "user", "content": asked.template.replace("{question}", found.question)}


def _example(found: QuestionAnswer, asked: Asked) -> list[dict[str, str]]:
    shown = f"{found.solution}\n#### {found.answer}"
    if asked.tags:
        shown = f"<think>\n{found.solution}\n</think>\n<answer>\n{found.answer}\n</answer>"
    return [_turn(found, asked), {"role": "assistant", "content": shown}]


def write(rows: Iterable[dict[str, Any]], output: Path) -> None:
    """Write the rows to a new file. It appears only when it is complete and has a row."""
    part = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", dir=output.parent, prefix=f"{output.name}.", delete=False
        ) as file:
            part = Path(file.name)
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        if part.stat().st_size:
            part.chmod(0o666 & ~_umask())
            part.rename(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
