"""The ledger: every draw and its one outcome, an event a line. Its fold is the state of the run's accounts.

Each incarnation writes a file of its own, `ledger/000003.jsonl`. The file's creation is what takes the incarnation, and
its first line says which earlier file it continues and how many bytes of that count. So a torn last line never counts,
and neither does what a superseded incarnation still writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from olmorl.errors import ResourceError, Superseded
from olmorl.learner import durable
from olmorl.learner.accounts import Accounts, Line, Started

_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class Position(NamedTuple):
    """A point in the ledger: so many bytes of that incarnation's file, and all that this file continues."""

    incarnation: int
    num_bytes: int


class Ledger:
    """An event is durable before the accounts, or anything outside, depend on it."""

    def __init__(self, folder: Path, started: Started, accounts: Accounts) -> None:
        self.accounts = accounts
        self._path = path_of(folder, started.incarnation)
        self._successor = path_of(folder, started.incarnation + 1)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._incarnation = started.incarnation
        self._num_bytes = 0
        self.append(started)

    @property
    def position(self) -> Position:
        return Position(self._incarnation, self._num_bytes)

    def append(self, *events: Line) -> None:
        """Book events, all or none of them.

        Raises:
            ResourceError: they cannot be made durable, or contradict what is booked.
            Superseded: as `check_newest` does.
        """
        self.check(*events)
        if os.fstat(self._file).st_size != self._num_bytes:
            raise ResourceError(f"{self._path}: an earlier line is torn; continue with --resume")
        data = b"".join(_encoder.encode(event) + b"\n" for event in events)
        try:
            durable.append(self._file, data)
        except OSError as error:
            raise durable.unwritable(self._path, error) from error
        self._num_bytes += len(data)
        for event in events:
            self.accounts.apply(event)

    def check(self, *events: Line) -> None:
        """Raises what `append` would, but for what the disk says to it."""
        self.check_newest()
        if strange := self.accounts.contradictions(events):
            raise ResourceError(f"{self._path}: draws {strange} would end and are not open; continue with --resume")

    def check_newest(self) -> None:
        """Raises Superseded when a newer incarnation is there, wherever it runs and whatever Redis it goes by."""
        if self._successor.exists():
            raise Superseded(f"{self._path} by {self._successor.name}")

    def close(self) -> None:
        os.close(self._file)


def path_of(folder: Path, incarnation: int) -> Path:
    """The file of one incarnation."""
    return folder / f"{incarnation:06d}.jsonl"


def incarnations(folder: Path) -> list[int]:
    """Every incarnation that was ever taken, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit())


def acquire(folder: Path) -> int:
    """Take the next incarnation, atomically: of several that start at the same time each gets its own."""
    folder.mkdir(parents=True, exist_ok=True)
    incarnation = max(incarnations(folder), default=0) + 1
    while True:
        try:
            path_of(folder, incarnation).touch(exist_ok=False)
        except FileExistsError:
            incarnation += 1
            continue
        except OSError as error:
            raise durable.unwritable(folder, error) from error
        durable.sync_folder(folder)
        return incarnation


def give_up(folder: Path, incarnation: int) -> None:
    """Let an incarnation that has written nothing not have been."""
    path_of(folder, incarnation).unlink()


def end_of(folder: Path, below: int) -> Position | None:
    """Where the newest file that has begun ends, looking at incarnations before `below`; None for a new run."""
    for incarnation in reversed([i for i in incarnations(folder) if i < below]):
        num_bytes = durable.whole_lines(path_of(folder, incarnation).read_bytes())
        if num_bytes:
            return Position(incarnation, num_bytes)
    return None


def events_until(folder: Path, end: Position | None) -> Iterator[Line]:
    """All events of the surviving history up to `end`, oldest first.

    Raises:
        ResourceError: a line before the end that is not an event.
    """
    segments: list[Sequence[Line]] = []
    while end is not None:
        lines = _read(path_of(folder, end.incarnation), end.num_bytes)
        segments.append(lines)
        first = lines[0]
        if not isinstance(first, Started):
            raise ResourceError(f"{path_of(folder, end.incarnation)}: does not begin with its start; restore the file")
        end = Position(first.previous, first.previous_bytes) if first.previous else None
    for segment in reversed(segments):
        yield from segment


def fold(events: Iterator[Line]) -> Accounts:
    """The accounts after `events`."""
    accounts = Accounts()
    for event in events:
        accounts.apply(event)
    return accounts


def read_ledger(run_dir: Path) -> list[dict[str, Any]]:
    """One record a draw of the surviving history: `prompt_id`, `attempt`, `outcome`, `step`, `cause`, `row`.

    `outcome` is `in_flight` while there is none; `step` is None for a draw that was not trained. A run that is going
    on may be read at any time.
    """
    folder = run_dir / "ledger"
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
