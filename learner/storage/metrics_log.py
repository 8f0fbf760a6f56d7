"""`metrics.jsonl`: one line for each step of the surviving history, in order."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, takewhile
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from olmorl.errors import ResourceError
from olmorl.learner.storage import durable_files
from olmorl.metrics import of_evaluation
from olmorl.run_dir import RunFiles

Fields = Mapping[str, float | int | str | None]
_TOTAL = "tokens_evaluation_total"


class MetricsLog:
    """Each step has one line. Only its evaluation fields may change after the next line is written."""

    def __init__(self, path: Path, observe: Callable[[Fields], None] | None = None) -> None:
        """`observe` is called with every line that is added."""
        self._path = path
        self._observe = observe

    def read(self) -> list[dict[str, Any]]:
        """All lines, as `lines` gives them."""
        return list(self.lines())

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines, in order, except a torn last line, each read when it is asked for.

        Raises:
            ResourceError: a line is damaged.
        """
        if self._path.exists():
            with self._path.open("rb") as file:
                whole = takewhile(lambda line: line.endswith(b"\n"), file)
                yield from (self._decode(number, line) for number, line in enumerate(whole, 1))

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """All lines from the last one on, each read when it is asked for. Raises ResourceError at a damaged line."""
        return (self._decode(None, line) for _, line in self._newest_first())

    def _newest_first(self) -> Iterator[tuple[int, bytes]]:
        """For each whole line, where it begins and its bytes."""
        if self._path.exists():
            yield from durable_files.newest_lines(self._path)

    def _decode(self, number: int | None, line: bytes) -> dict[str, Any]:
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            if not isinstance(fields.get("step"), int):
                raise ValueError("it names no step")
            return fields
        except ValueError as error:  # includes UnicodeDecodeError
            if number is None:
                number = self._path.read_bytes().splitlines(keepends=True).index(line) + 1
            raise ResourceError(
                f"{self._path}:{number}: damaged ({error}): remove that line; it only feeds tables and plots"
            ) from None

    def append(self, fields: Fields) -> None:
        """Add a line. Raises ResourceError when it cannot be written."""
        durable_files.append_soon(self._path, _encode(fields))
        if self._observe:
            self._observe(fields)

    def amend(self, fields: Fields) -> None:
        """Add an evaluation to the last line, if any: after the last step there is no later line.

        A line holds one round of a set. An earlier round in the last line moves to the line before, if there is one,
        with the total of tokens that includes it.
        """
        if not (lines := self.read()):
            return
        added = dict(fields)
        for number in reversed(range(len(lines))):
            moved = of_evaluation(lines[number]) if of_evaluation(added).keys() & lines[number].keys() else {}
            if moved and _TOTAL in lines[number]:
                moved[_TOTAL] = lines[number][_TOTAL]
            lines[number] = {key: value for key, value in lines[number].items() if key not in moved} | added
            if not (added := moved):
                break
        durable_files.write_whole(self._path, map(_encode, lines))
        if self._observe:
            self._observe(fields)

    def sync(self) -> None:
        """Make all lines durable. Blocks. Raises ResourceError if the disk refuses."""
        try:
            if self._path.exists():
                with self._path.open("rb") as file:
                    os.fsync(file.fileno())
        except OSError as error:
            raise durable_files.unwritable(self._path, error) from error

    def cut_after(self, step: int, abandoned: Path) -> None:
        """Move the lines after `step` to the file `abandoned`: the steps will be taken again."""
        if not self._path.exists():
            return
        keep = 0
        for begin, line in self._newest_first():
            if self._decode(None, line)["step"] <= step:
                keep = begin + len(line)
                break
        if tail := durable_files.cut(self._path, keep):
            durable_files.write_whole(abandoned, [tail[: durable_files.whole_lines(tail)]])


def missing_steps(lines: Iterable[Mapping[str, Any]]) -> str:
    """Names the steps before the last line that have no line, in words; empty if each has one."""
    gaps, expected = [], 1
    for step in (line["step"] for line in lines):
        if step > expected:
            gaps.append(f"{expected}" if step == expected + 1 else f"{expected} to {step - 1}")
        expected = step + 1
    return f"no line for step {', '.join(gaps)}: tables and plots lack them" if gaps else ""


def history(files: RunFiles) -> Iterator[dict[str, Any]]:
    """One line for each step that was ever taken, in order; of the surviving history if it has the step."""
    paths = sorted(files.run_dir.glob("abandoned/*/metrics.jsonl"))
    abandoned = {line["step"]: line for path in paths for line in MetricsLog(path).lines()}
    earlier = [line for _, line in sorted(abandoned.items())]
    lines = heapq.merge(earlier, MetricsLog(files.metrics).lines(), key=itemgetter("step"))
    return (list(of_step)[-1] for _, of_step in groupby(lines, key=itemgetter("step")))


def highest_total(files: RunFiles, name: str) -> float:
    """The greatest value of a total: it does not fall when the run goes back, and grows from line to line."""
    paths = [*files.run_dir.glob("abandoned/*/metrics.jsonl"), files.metrics]
    last = (next(MetricsLog(path).newest_first(), {}) for path in paths)
    return max((value for line in last if isinstance(value := line.get(name), int | float)), default=0.0)


def _encode(fields: Fields) -> bytes:
    finite = {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in fields.items()}
    return msgspec.json.encode(finite) + b"\n"
