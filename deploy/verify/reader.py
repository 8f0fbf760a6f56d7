"""Reads rows with completions for `olmorl-verify`, one after the other. Each has its place in the input and a digest.

An unusable row is an item too, with the reason, and has its line in the output.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.deploy.verify.input_files import STANDARD, check_rows
from olmorl.errors import DataError
from olmorl.learner.data.readers import read

EPISODE = "episode"
"""Column of an episode in the answers of olmorl-eval."""
_ROLLOUTS = {"datasets": "dataset", "ground_truths": "ground_truth"}
"""Columns of `rollouts/`, by their names in data."""
MAX_LINE_BYTES = 1 << 30
"""The most bytes of a line from a pipe."""


class Item(NamedTuple):
    """One row of the input."""

    place: str
    """`file:line`, as in training."""
    digest: str
    """Digest of the row and the settings that a line of output depends on."""
    values: dict[str, Any]
    completions: tuple[str, ...]
    """Empty when the row is unusable."""
    recorded: tuple[Any, ...] = ()
    """The same as the row has them: texts, messages, completions of `rollouts/`, or an episode of olmorl-eval."""
    listed: bool = False
    """Whether it has a list of completions, not one."""
    problem: str = ""
    """Why the row is unusable; empty if it is usable."""
    position: int = 0
    """Bytes or rows of the input up to its end."""


async def items(name: str, column: str, settings: str) -> AsyncIterator[Item]:
    """All rows of a file or of standard input.

    Args:
        name: JSONL, or Parquet by its ending; `-` is standard input.
        column: of the completion; a list of them is in the column of the plural name.
        settings: the digests depend on these and on the rows.

    Raises:
        DataError: the input cannot be read.
    """
    if name.endswith(".parquet"):
        for number, (place, values) in enumerate(read(name, "train", columns=True), 1):
            content = json.dumps(values, sort_keys=True, default=str).encode("utf-8", "backslashreplace")
            yield _item(place, content, settings, column, number, values)
        return
    looked = False
    async for number, line, position in _lines(name):
        if line.strip():
            if not looked:
                check_rows(name, line)
            looked = True
            yield _item(f"{name}:{number}", line.strip(), settings, column, position, None)


def size(name: str) -> int | None:
    """The position of the last item, if it can be known. Raises DataError for a file that is not Parquet."""
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(name).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name}: not readable as Parquet: {error}") from None
    return None if name == STANDARD else Path(name).stat().st_size or None


async def _lines(name: str) -> AsyncIterator[tuple[int, bytes, int]]:
    """Lines with their numbers, and the position behind each."""
    number = position = 0
    if name == STANDARD and sys.stdin is None:
        raise DataError("-: standard input is closed")
    if name == STANDARD and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        # A pipe may be slow: waiting for it must not keep verdicts from being written.
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        try:
            while line := await reader.readline():
                number, position = number + 1, position + len(line)
                yield number, line, position
        except ValueError:
            raise DataError(f"-:{number + 1}: a line of more than {MAX_LINE_BYTES >> 20} MiB; rows are lines") from None
        return
    for line in _file_lines(name):
        number, position = number + 1, position + len(line)
        yield number, line, position


def _file_lines(name: str) -> Iterator[bytes]:
    try:
        if name == STANDARD:
            yield from sys.stdin.buffer
        else:
            with Path(name).open("rb") as lines:
                yield from lines
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from None


def _item(place: str, content: bytes, settings: str, column: str, position: int, values: dict[str, Any] | None) -> Item:
    digest = blake2b(content, digest_size=8, key=blake2b(settings.encode(), digest_size=16).digest()).hexdigest()
    try:
        row = _parsed(content) if values is None else values
        recorded, listed = _completions(row, column)
        completions = tuple(map(_text, recorded))
    except ValueError as error:
        return Item(place, digest, {}, (), problem=str(error), position=position)
    if isinstance(row.get(EPISODE), dict):
        recorded = (row[EPISODE],)
    rest = {_ROLLOUTS.get(key, key): value for key, value in row.items() if key not in (column, f"{column}s")}
    return Item(place, digest, rest, completions, recorded, listed, position=position)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but a {type(row).__name__}")
    return row


def _completions(row: dict[str, Any], column: str) -> tuple[tuple[Any, ...], bool]:
    """The completions of a row, and whether they were a list."""
    several, one = row.get(f"{column}s"), row.get(column)
    if several is not None:
        if not isinstance(several, list) or not several:
            raise ValueError(f"the column {column}s is no list of completions, or empty")
        return tuple(several), True
    if one is None:
        raise ValueError(f"no completion: neither a column {column} nor a column {column}s")
    return (one,), False


def _text(completion: Any) -> str:
    """A completion may be text, one of `rollouts/`, or a conversation whose last answer, or else last turn, it is."""
    if isinstance(completion, dict):
        completion = completion.get("text")
    if isinstance(completion, list) and completion and all(isinstance(turn, dict) for turn in completion):
        last = next((turn for turn in reversed(completion) if turn.get("role") == "assistant"), completion[-1])
        completion = last.get("content") or ("" if last.get("tool_calls") else None)
    if not isinstance(completion, str):
        raise ValueError(f"a completion is text, or turns of a conversation, not {str(completion)[:80]!r}")
    return completion
