"""`metrics.jsonl`: one line for each step of the surviving history, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from olmorl.errors import ResourceError
from olmorl.learner import durable

Fields = Mapping[str, float | int | str | None]


class Lines:
    """A line is never changed once the next one stands after it."""

    def __init__(self, path: Path, observe: Callable[[Fields], None] | None = None) -> None:
        """`observe` is told of every line that is added."""
        self._path = path
        self._observe = observe

    def read(self) -> list[dict[str, Any]]:
        """All lines, in order; a torn last one is not counted. Raises ResourceError for one that is damaged."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return [self._decode(i, line) for i, line in enumerate(data[: durable.whole_lines(data)].splitlines(), 1)]

    def _decode(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            if not isinstance(fields.get("step"), int):
                raise ValueError("it names no step")
            return fields
        except ValueError as error:  # also of bytes that are no text
            raise ResourceError(
                f"{self._path}:{number}: damaged ({error}): take that line out, only figures are made of it"
            ) from None

    def append(self, fields: Fields) -> None:
        """Add a line. Raises ResourceError when it cannot be written."""
        durable.append_soon(self._path, _encode(fields))
        if self._observe:
            self._observe(fields)

    def amend(self, fields: Fields) -> None:
        """Add fields to the last line, if any: an evaluation after the last step has no later line to stand in."""
        if lines := self.read():
            lines[-1] |= fields
            durable.write_whole(self._path, map(_encode, lines))
            if self._observe:
                self._observe(fields)

    def sync(self) -> None:
        """Make all lines durable. Blocks."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def cut_after(self, step: int, abandoned: Path) -> None:
        """Move the lines after `step` to the file `abandoned`: the steps are taken again."""
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        lines = data[: durable.whole_lines(data)].splitlines(keepends=True)
        keep = sum(len(line) for i, line in enumerate(lines, 1) if self._decode(i, line)["step"] <= step)
        if tail := durable.cut(self._path, keep):
            durable.write_whole(abandoned, [tail[: durable.whole_lines(tail)]])


def _encode(fields: Fields) -> bytes:
    finite = {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in fields.items()}
    return msgspec.json.encode(finite) + b"\n"
