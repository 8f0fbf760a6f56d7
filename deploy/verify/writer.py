"""Writes the output of `olmorl-verify`: whole lines in the order of the input, also for a resumed job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from olmorl.deploy.verify.input_files import STANDARD
from olmorl.deploy.verify.reader import Item
from olmorl.errors import DataError

FLUSH_S = 1.0
"""Pause between two writes to a file. Lines go into a pipe at once."""

Line = dict[str, Any]
"""One object of the output."""


@contextmanager
def opened(name: str, resume: bool, force: bool) -> Iterator[Scores]:
    """Open the output, or standard output for `-`.

    Raises:
        DataError: the file exists and is neither to be resumed nor replaced, or it cannot be written.
    """
    if name == STANDARD:
        if resume:
            raise DataError("--resume needs an output file: -o OUT.jsonl")
        if sys.stdout is None:
            raise DataError("-: standard output is closed")
        yield Scores(name, sys.stdout.buffer, False)
        with _writing(name):
            sys.stdout.buffer.flush()
        return
    exists = Path(name).is_file()
    if exists and not (resume or force):
        raise DataError(f"{name} exists: --resume goes on with it, --force replaces it, or give another -o")
    with _writing(name):
        file = Path(name).open("r+b" if resume and exists else "wb")  # noqa: SIM115  an error of the body is not the file's
    try:
        yield Scores(name, file, resume and exists)
    finally:
        with _writing(name):
            file.close()


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{name}: cannot be written: {error.strerror}") from None


class Scores:
    """Holds whole lines only, each of the row of the input that it names."""

    def __init__(self, name: str, file: BinaryIO, resume: bool) -> None:
        self._name = name
        self._file = file
        self._resume = resume
        self._flushed = time.monotonic()

    async def matched(self, rows: AsyncIterator[Item]) -> AsyncIterator[tuple[Item, list[Line] | None]]:
        """Each row, with its lines if it was scored before. The rest of the file is cut off.

        Raises:
            DataError: the lines are not of these rows under these settings.
        """
        lines = self._whole_lines() if self._resume else iter(())
        going, end = self._resume, 0
        async for item in rows:
            known, position = self._known(item, lines) if going else ([], 0)
            if known:
                end = position
            elif going:
                going = False
                self._cut(end)
            yield item, known or None
        if going:
            if next(lines, None) is not None:
                raise DataError(f"{self._name} has more lines than the input has rows: it is another file's output")
            self._cut(end)

    def write(self, lines: list[Line]) -> None:
        """Append the lines of a row."""
        now = time.monotonic()
        with _writing(self._name):
            self._file.write(b"".join(map(encoded, lines)))
            if self._name == STANDARD or now - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = now

    def _known(self, item: Item, lines: Iterator[tuple[int, Line]]) -> tuple[list[Line], int]:
        """All lines of a row and the position behind them; none when one is missing."""
        taken: list[Line] = []
        position = 0
        for _ in range(max(len(item.completions), 1)):
            position, line = next(lines, (0, None))
            if line is None:
                return [], 0
            self._check(item, line)
            taken.append(line)
        return taken, position

    def _check(self, item: Item, line: Line) -> None:
        if (line.get("row"), line.get("digest")) != (item.place, item.digest):
            raise DataError(
                f"{self._name} is not of this input and these settings: it has {line.get('row')} where {item.place} "
                "comes, or that row or a setting has changed; give another -o, or --force to start again"
            )

    def _whole_lines(self) -> Iterator[tuple[int, Line]]:
        """The lines that are complete, with the position behind each."""
        position = 0
        with Path(self._name).open("rb") as file:
            for line in file:
                position += len(line)
                if not line.endswith(b"\n"):
                    return
                yield position, self._parsed(line)

    def _parsed(self, line: bytes) -> Line:
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise DataError(f"{self._name} holds a line that olmorl-verify did not write; give another -o")
        return values

    def _cut(self, end: int) -> None:
        with _writing(self._name):
            self._file.seek(end)
            self._file.truncate()


def encoded(line: Line) -> bytes:
    """A line of JSON. Characters that UTF-8 cannot hold are escaped."""
    return (json.dumps(line, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace")
