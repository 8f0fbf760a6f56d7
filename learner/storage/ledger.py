"""The ledger: every draw and its one outcome, one event a line. All events applied in order give the `LedgerState`.

Each incarnation writes its own file, `ledger/000003.jsonl`. Creating the file takes the incarnation number. The first
line names the earlier file that this one continues, and how many bytes of it count. So a torn last line never counts,
and neither do lines that a superseded incarnation writes later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from olmorl.errors import ResourceError, Superseded
from olmorl.learner.storage import durable_files
from olmorl.learner.storage.ledger_state import LedgerState, Line, Started
from olmorl.run_dir import RunFiles

_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class Position(NamedTuple):
    """A point in the ledger: `num_bytes` of one incarnation's file, and everything that this file continues."""

    incarnation: int
    num_bytes: int


class Ledger:
    """An event is durable before the state, or anything outside, depends on it."""

    def __init__(
        self, folder: Path, started: Started, state: LedgerState, wall: Callable[[], float] = time.time
    ) -> None:
        """`wall` gives the time of the events, in Unix seconds."""
        self.state = state
        self._wall = wall
        self._path = path_of(folder, started.incarnation)
        self._successor = path_of(folder, started.incarnation + 1)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._incarnation = started.incarnation
        self._num_bytes = 0
        try:
            self.append(started)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> Position:
        return Position(self._incarnation, self._num_bytes)

    def append(self, *events: Line) -> None:
        """Write events, all or none of them, and apply them to the state.

        Raises:
            ResourceError: they cannot be made durable, or they contradict the state.
            Superseded: as `check_newest` does.
        """
        self.check(*events)
        if os.fstat(self._file).st_size != self._num_bytes:
            raise ResourceError(f"{self._path}: an earlier line is torn; continue with --resume")
        at = round(self._wall(), 3)
        stamped = [replace(event, at=at) for event in events]
        data = b"".join(_encoder.encode(event) + b"\n" for event in stamped)
        try:
            durable_files.append(self._file, data)
        except OSError as error:
            raise durable_files.unwritable(self._path, error) from error
        self._num_bytes += len(data)
        for event in stamped:
            self.state.apply(event)

    def check(self, *events: Line) -> None:
        """Raise the errors of `append`, except disk errors."""
        self.check_newest()
        if strange := self.state.contradictions(events):
            raise ResourceError(f"{self._path}: draws {strange} would end and are not open; continue with --resume")

    def check_newest(self) -> None:
        """Raises Superseded when a newer incarnation exists, on any host and with any Redis."""
        if self._successor.exists():
            raise Superseded(f"{self._path} is superseded by {self._successor.name}")

    def close(self) -> None:
        os.close(self._file)


def path_of(folder: Path, incarnation: int) -> Path:
    """The file of one incarnation."""
    return folder / f"{incarnation:06d}.jsonl"


def incarnations(folder: Path) -> list[int]:
    """Every incarnation number that was taken, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit())


def acquire(folder: Path) -> int:
    """Take the next incarnation number, atomically: starts at the same time get different numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    incarnation = max(incarnations(folder), default=0) + 1
    while True:
        try:
            path_of(folder, incarnation).touch(exist_ok=False)
        except FileExistsError:
            incarnation += 1
            continue
        except OSError as error:
            raise durable_files.unwritable(folder, error) from error
        durable_files.sync_folder(folder)
        return incarnation


def release(folder: Path, incarnation: int) -> None:
    """Release an incarnation number that was never used."""
    path_of(folder, incarnation).unlink()


def end_of(folder: Path, below: int) -> Position | None:
    """The end of the newest non-empty file of an incarnation before `below`; None for a new run."""
    for incarnation in reversed([i for i in incarnations(folder) if i < below]):
        num_bytes = durable_files.whole_lines(path_of(folder, incarnation).read_bytes())
        if num_bytes:
            return Position(incarnation, num_bytes)
    return None


def events_until(folder: Path, end: Position | None) -> Iterator[Line]:
    """All events of the history up to `end`, oldest first.

    Raises:
        ResourceError: a line before the end that is not an event.
    """
    segments: list[Sequence[Line]] = []
    while end is not None:
        lines = _read(path_of(folder, end.incarnation), end.num_bytes)
        segments.append(lines)
        first = lines[0]
        if not isinstance(first, Started):
            raise ResourceError(
                f"{path_of(folder, end.incarnation)}: does not begin with an event `started`; restore the file"
            )
        end = Position(first.previous, first.previous_bytes) if first.previous else None
    for segment in reversed(segments):
        yield from segment


def fold(events: Iterator[Line]) -> LedgerState:
    """The state after `events`."""
    accounts = LedgerState()
    for event in events:
        accounts.apply(event)
    return accounts


def read_ledger(run_dir: Path) -> list[dict[str, Any]]:
    """One record for each draw of the history: `prompt_id`, `attempt`, `outcome`, `step`, `cause`, `row`.

    `outcome` is `in_flight` while there is none; `step` is None for a draw that was not trained. A run may be
    read while it trains.
    """
    folder = RunFiles(run_dir).ledger
    newest = max(incarnations(folder), default=0)
    accounts = fold(events_until(folder, end_of(folder, newest + 1)))
    return [
        {
            "prompt_id": draw_id,
            "attempt": draw.attempt,
            "outcome": draw.outcome or "in_flight",
            "step": draw.step,
            "cause": draw.cause,
            "row": draw.row,
        }
        for draw_id, draw in sorted(accounts.draws.items())
    ]


def _read(path: Path, num_bytes: int) -> list[Line]:
    lines = path.read_bytes()[:num_bytes].splitlines()
    events = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ResourceError(f"{path}:{number}: damaged ({error}); restore the file from a copy") from error
    return events
