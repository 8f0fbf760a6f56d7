"""The file of answers: one row an answer, JSON lines or Parquet by its name.

While answers come, lines are appended to `FILE.part`: one when an answer is generated, one with the same columns and
its verdict when it is scored. The last line of an answer counts. At the end the rows are put in order, in FILE.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from olmorl.deploy.evaluation.measures import Outcome
from olmorl.deploy.verify.input_files import check_writable
from olmorl.deploy.verify.writer import encoded
from olmorl.errors import DataError, ResourceError
from olmorl.messages import Completion, Episode, Span, Turn, Verdict, Version

Row = dict[str, Any]
EPISODE = "episode"
"""Column that files of earlier versions lack."""
COLUMNS = {
    "model": ("string", "the model, as on the command line; a checkpoint of a run with its step"),
    "data": ("string", "the name of the data set or protocol"),
    "row": ("string", "file:line of the prompt"),
    "sample": ("int64", "number of the answer to its prompt, from 0"),
    "prompt": ("json", "the prompt: text, or turns as JSON"),
    "ground_truth": ("json", "the labels, one for each verifier, as JSON"),
    "dataset": ("json", "the verifiers, as JSON"),
    "completion": ("string", "the answer"),
    "completion_ids": ("list", "its tokens"),
    "finish_reason": ("string", "stop, or length for an answer that was cut off"),
    EPISODE: ("json", "its exit, turns and own rewards; null for a single answer"),
    "reward": ("double", "null: it could not be scored"),
    "solved": ("bool", "whether all built-in verifiers give 1; null without a reward"),
    "vote": ("int64", "equal numbers are equal answers to one prompt, 0 the right one; null: no answer to compare"),
    "extracted": ("string", "the answer that was found in the text"),
    "method": ("string", "how it was compared"),
    "error_kind": ("string", "why it has no reward"),
    "detail": ("string", "one line about it"),
    "seconds": ("double", "seconds spent on scoring it"),
    "settings": ("string", "digest of the prompt's tokens, the labels, the sampling, episodes and the verifiers"),
}
"""The columns of a row: type and meaning."""


class Key(NamedTuple):
    """An answer among those of all models and data sets."""

    model: str
    data: str
    row: str
    sample: int


class _Known(NamedTuple):
    """Where an answer is in the part file, and what counts of it; None: it is not scored yet."""

    start: int
    size: int
    settings: str
    outcome: Outcome | None


class AnswerFile:
    """No answer is lost once `add` has returned, and none is there twice. Lines are whole after any end of the process.

    Raises:
        DataError: the file is there and is neither to be resumed nor replaced, or it is no file of answers.
        ResourceError: it cannot be written.
    """

    def __init__(self, path: Path, *, resume: bool, replace: bool) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._known: dict[Key, _Known] = {}
        there = path if path.exists() else self._part
        if there.exists() and not (resume or replace):
            raise DataError(f"{there} exists: --resume goes on with it, --force replaces it, or give another -o")
        if path.suffix not in (".jsonl", ".parquet"):
            raise DataError(f"{path}: answers are JSON lines or Parquet: name the file .jsonl or .parquet")
        check_writable(str(path), replace=True)
        if replace:
            self._part.unlink(missing_ok=True)
        elif path.exists() and not self._part.exists():
            self._copy_to_part()
        self._file = self._part.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path}: another command writes this file; wait for it, or give another -o") from None
        self._file.truncate(self._read())

    def _copy_to_part(self) -> None:
        """The finished rows are the beginning of the next part file."""
        copy = self._part.with_name(f"{self._part.name}.{os.getpid()}")
        with copy.open("wb") as file:
            for row in read(self._path):
                file.write(encoded(row))
        copy.replace(self._part)

    def _read(self) -> int:
        """Note all whole lines; returns where they end."""
        end = 0
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                self._note(json.loads(line), end, len(line))
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{self._part}: a line is no answer of an evaluation; give another -o") from None
            end += len(line)
        return end

    def _note(self, row: Row, start: int, size: int) -> None:
        key = Key(row["model"], row["data"], row["row"], row["sample"])
        self._known[key] = _Known(start, size, row["settings"], outcome_of(row) if "reward" in row else None)

    def has(self, key: Key, settings: str) -> bool:
        """Whether an answer was generated. Raises DataError if that was with other settings."""
        known = self._known.get(key)
        if known is not None and known.settings != settings:
            raise DataError(
                f"{self._path}: the answer {key.sample} of {key.model} to {key.row} was made with another prompt, "
                "label, sampling or verifier, or other episodes; give another -o, or --force to start again"
            )
        return known is not None

    def outcome(self, key: Key) -> Outcome | None:
        """What counts of an answer; None until it is scored."""
        return self._known[key].outcome if key in self._known else None

    def row(self, key: Key) -> Row:
        """The newest line of an answer that is there."""
        known = self._known[key]
        self._file.seek(known.start)
        row: Row = json.loads(self._file.read(known.size))
        return row

    def add(self, row: Row) -> None:
        """Append a line and hand it to the operating system."""
        line = encoded(row)
        try:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise ResourceError(f"{self._part}: cannot be written: {error.strerror}; --resume goes on") from None
        self._note(row, start, len(line))

    def finish(self) -> None:
        """Write the rows, if any, in order of model, data, row and sample. The file appears when it is complete."""
        if not self._known:
            return
        models = list(dict.fromkeys(key.model for key in self._known))
        keys = sorted(self._known, key=lambda key: (models.index(key.model), key.data, *_place(key.row), key.sample))
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            _write(partial, self._path.suffix, (self.row(key) for key in keys))
            partial.replace(self._path)
        except OSError as error:
            raise ResourceError(f"{self._path}: cannot be written: {error.strerror}; --resume goes on") from None
        finally:
            partial.unlink(missing_ok=True)
        self._part.unlink()

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if not self._known:
            self._part.unlink(missing_ok=True)


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """What counts of a scored row."""
    return Outcome(
        row["solved"], row["vote"], len(row["completion_ids"]), row["finish_reason"] == "length", row["reward"]
    )


def completion_of(row: Mapping[str, Any]) -> Completion:
    """The answer of a row, as the verifiers take it."""
    played = row.get(EPISODE) or {}
    finish_reason: Literal["stop", "length"] = "length" if row.get("finish_reason") == "length" else "stop"
    return Completion(
        index=row.get("sample", 0),
        token_ids=np.array(row.get("completion_ids", ()), np.int32),
        logprobs=np.zeros(0, np.float32),
        spans=(Span(Version(0, 0), 0, 0),),
        finish_reason=finish_reason,
        text=row["completion"],
        verdicts=msgspec.convert(played.get("verdicts", {}), dict[str, Verdict]),
        episode=Episode(turns=tuple(map(_turn, played["turns"])), exit=played["exit"]) if played else msgspec.UNSET,
    )


def _turn(messages: Sequence[dict[str, Any]]) -> Turn:
    """A turn of what came in and the reply, without its tokens."""
    *before, reply = messages
    return Turn(kept=0, added=np.zeros(0, np.int32), start=0, end=0, finish_reason="stop", messages=before, reply=reply)


def episode_of(completion: Completion) -> dict[str, Any] | None:
    """The column of an episode; None for a single answer."""
    if not completion.turns:
        return None
    turns = [[*turn.messages, turn.reply] for turn in completion.turns]
    verdicts = {name: replace(verdict, token_rewards=msgspec.UNSET) for name, verdict in completion.verdicts.items()}
    return {"exit": completion.exit, "turns": turns, "verdicts": msgspec.to_builtins(verdicts)}


def read(path: Path) -> Iterator[Row]:
    """The rows of a finished file. Raises DataError if it is none."""
    from olmorl.learner.data.row_files import read_file

    for place, values in read_file(path, columns=True):
        if set(COLUMNS) - {EPISODE} - set(values):
            raise DataError(f"{place}: no answer of an evaluation; give another -o")
        values.setdefault(EPISODE, "null" if path.suffix == ".parquet" else None)
        yield {
            name: json.loads(values[name]) if kind == "json" and path.suffix == ".parquet" else values[name]
            for name, (kind, _) in COLUMNS.items()
        }


def _place(row: str) -> tuple[str, int]:
    name, _, number = row.rpartition(":")
    return name, int(number) if number.isdecimal() else 0


def _write(path: Path, suffix: str, rows: Iterator[Row]) -> None:
    if suffix == ".parquet":
        _write_parquet(path, rows)
        return
    with path.open("wb") as file:
        for row in rows:
            file.write(encoded(row))


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "string": pa.string(),
        "json": pa.string(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    types["list"] = pa.list_(pa.int32())
    schema = pa.schema([(name, types[kind]) for name, (kind, _) in COLUMNS.items()])
    with pq.ParquetWriter(path, schema) as writer:
        batch: list[Row] = []
        for row in rows:
            plain = {
                name: json.dumps(row[name]) if kind == "json" else row[name] for name, (kind, _) in COLUMNS.items()
            }
            batch.append(plain)
            if len(batch) == 1000:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))
