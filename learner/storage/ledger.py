"""The ledger: every draw and its one outcome, one event a line. All events applied in order give the `LedgerState`.

Each incarnation writes its own file, `ledger/000003.jsonl`. Creating the file takes the incarnation number. The first
line names the earlier file that this one continues, and how many bytes of it count. So a torn last line never counts,
and neither do lines that a superseded incarnation writes later.

Every line carries a checksum (`sealed_lines`). `ledger/000003.size` holds the number of bytes that were made durable:
with fewer, the file was cut.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from msgspec.structs import replace

from olmorl.errors import ResourceError, Superseded
from olmorl.learner.storage import durable_files, sealed_lines
from olmorl.learner.storage.ledger_state import Draw, Drawn, LedgerState, Line, Started, Trained
from olmorl.run_dir import RunFiles

_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()
RESTORE = "restore the file from a copy, or leave the damage behind with --resume --from-step N"


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
        note_size(folder, Position(started.incarnation, 0))
        self._size_file = os.open(_size_path(self._path), os.O_WRONLY)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._incarnation = started.incarnation
        self._num_bytes = self._checksum = 0
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
        lines, checksum = [], self._checksum
        for event in stamped:
            line, checksum = sealed_lines.seal(_encoder.encode(event), checksum)
            lines.append(line + b"\n")
        data = b"".join(lines)
        try:
            durable_files.append(self._file, data)
        except OSError as error:
            raise durable_files.unwritable(self._path, error) from error
        self._num_bytes += len(data)
        self._checksum = checksum
        with suppress(OSError):  # an older size is still true: the file has no fewer bytes
            os.pwrite(self._size_file, _size_record(self._num_bytes), 0)
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
        os.close(self._size_file)


def path_of(folder: Path, incarnation: int) -> Path:
    """The file of one incarnation."""
    return folder / f"{incarnation:06d}.jsonl"


def _size_path(path: Path) -> Path:
    return path.with_suffix(".size")


def files_of(folder: Path, incarnation: int) -> list[Path]:
    """The files of one incarnation that exist."""
    path = path_of(folder, incarnation)
    return [file for file in (_size_path(path), path) if file.exists()]


def note_size(folder: Path, position: Position) -> None:
    """Record how many bytes of an incarnation's file are durable. Raises ResourceError when the disk refuses it."""
    path = path_of(folder, position.incarnation)
    durable_files.write_whole(_size_path(path), [_size_record(position.num_bytes)])


def cut(folder: Path, end: Position) -> bytes:
    """Shorten the file of an incarnation to `end`, durably; returns the bytes that were cut off."""
    path = path_of(folder, end.incarnation)
    if _size_path(path).exists():
        note_size(folder, end._replace(num_bytes=min(end.num_bytes, path.stat().st_size)))
    return durable_files.cut(path, end.num_bytes)


def _size_record(num_bytes: int) -> bytes:
    text = b"%020d" % num_bytes
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _durable_size(path: Path) -> int | None:
    """The bytes of a file that were made durable; None if its record was removed."""
    for _ in range(3):  # it may be written meanwhile
        try:
            data = _size_path(path).read_bytes()
        except FileNotFoundError:
            return None
        if data[:20].isdigit() and data == _size_record(int(data[:20])):
            return int(data[:20])
    raise ResourceError(
        f"{_size_path(path)}: damaged; it only says how long {path.name} is: remove it if that file is whole"
    )


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
    """The end of the newest non-empty file of an incarnation before `below`; None for a new run.

    Raises:
        ResourceError: the file is shorter than it was.
    """
    for incarnation in reversed([i for i in incarnations(folder) if i < below]):
        path = path_of(folder, incarnation)
        durable = _durable_size(path) or 0  # before the file: it may grow meanwhile
        num_bytes = durable_files.end_of_lines(path)
        if num_bytes < durable:
            way_on = f"remove {_size_path(path).name} to go on with the lines that are left: later draws are made again"
            raise ResourceError(f"{_cut(path, num_bytes, durable)}; or {way_on}")
        if num_bytes:
            return Position(incarnation, num_bytes)
    return None


def newest_end(folder: Path) -> Position | None:
    """The end of the newest non-empty file; None for a new run. Raises ResourceError as `end_of` does."""
    return end_of(folder, max(incarnations(folder), default=0) + 1)


class Part(NamedTuple):
    """A part of one incarnation's file that belongs to a history."""

    incarnation: int
    begin: int
    end: int


def parts(folder: Path, end: Position | None, begin: Position | None = None) -> list[Part]:
    """The parts of the files from `begin`, or from the first line, up to `end`; oldest first.

    Raises:
        LookupError: `begin` is not part of this history.
        ResourceError: a file is missing or shorter than it was, or its first line is damaged.
    """
    found: list[Part] = []
    while end is not None:
        _durable_size(path_of(folder, end.incarnation))  # raises when it is damaged
        if begin is not None and end.incarnation <= begin.incarnation:
            if end.incarnation < begin.incarnation or end.num_bytes < begin.num_bytes:
                raise LookupError(f"{begin} is not before {end}")
            found.append(Part(begin.incarnation, begin.num_bytes, end.num_bytes))
            break
        found.append(Part(end.incarnation, 0, end.num_bytes))
        first = _first(path_of(folder, end.incarnation))
        end = Position(first.previous, first.previous_bytes) if first.previous else None
    return found[::-1]


def events_until(folder: Path, end: Position | None, begin: Position | None = None) -> Iterator[Line]:
    """All events of the history after `begin`, or all, up to `end`, oldest first.

    Raises:
        LookupError: `begin` is not part of this history.
        ResourceError: a line that is not what was written, or a file that is cut.
    """
    for part in parts(folder, end, begin):
        yield from _read(path_of(folder, part.incarnation), part.begin, part.end)


def fold(events: Iterable[Line], state: LedgerState | None = None) -> LedgerState:
    """Apply `events` to `state`, or to that of a new run; returns it."""
    state = LedgerState() if state is None else state
    for event in events:
        state.apply(event)
    return state


def read_ledger(run_dir: Path) -> Iterator[dict[str, Any]]:
    """One record for each draw, in order: `prompt_id`, `attempt`, `outcome`, `step`, `cause`, `row`.

    `outcome` is `in_flight` while there is none; `step` is None for a draw that was not trained. A run may be read
    while it trains. Only draws that a later event may change, and draws behind them, are held in memory.

    Raises:
        ResourceError: the ledger is damaged.
    """
    folder, state = RunFiles(run_dir).ledger, LedgerState()
    waiting: deque[tuple[int, Draw]] = deque()
    files = parts(folder, newest_end(folder))
    starts = [_first(path_of(folder, part.incarnation)).step for part in files]
    for number, part in enumerate(files, 1):
        last_step = min(starts[number:], default=sys.maxsize)  # later starts undo the steps after it
        for event in _read(path_of(folder, part.incarnation), part.begin, part.end):
            state.apply(event)
            if isinstance(event, Drawn):
                waiting.append((event.draw, state.open[event.draw]))
            elif isinstance(event, Trained):
                state.forget(min(event.step, last_step))
            while waiting and waiting[0][1].outcome and (waiting[0][1].step or 0) <= last_step:
                yield _record(*waiting.popleft())
    yield from (_record(*each) for each in waiting)


def _record(draw_id: int, draw: Draw) -> dict[str, Any]:
    return {
        "prompt_id": draw_id,
        "attempt": draw.attempt,
        "outcome": draw.outcome or "in_flight",
        "step": draw.step,
        "cause": draw.cause,
        "row": draw.row,
    }


def history(run_dir: Path) -> Iterator[Line]:
    """All events of a run, oldest first; also while it trains. Raises ResourceError when the ledger is damaged."""
    folder = RunFiles(run_dir).ledger
    return events_until(folder, newest_end(folder))


def _first(path: Path) -> Started:
    """The first line of a file."""
    for line in _read(path, 0, 1):
        if isinstance(line, Started):
            if path != path_of(path.parent, line.incarnation):
                raise ResourceError(f"{path}: it holds the events of start {line.incarnation}; {RESTORE}")
            return line
    raise ResourceError(f"{path}: damaged: it does not begin with an event `started`; {RESTORE}")


def _read(path: Path, begin: int, end: int) -> Iterator[Line]:
    """The lines that begin between two offsets."""
    try:
        with path.open("rb") as file:
            checksum = _checksum_before(file, begin)
            file.seek(begin)
            while begin < end:
                line = file.readline()
                if not line.endswith(b"\n"):
                    raise _cut(path, begin, end)
                try:
                    checksum = sealed_lines.check(line[:-1], checksum)
                    event = _decoder.decode(line)
                except ValueError as error:
                    where = f"{path}:{_line_number(path, begin)}"
                    raise ResourceError(f"{where}: damaged ({error}); {RESTORE}") from error
                begin += len(line)
                yield event
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read ({error.strerror}); {RESTORE}") from error


def _checksum_before(file: BinaryIO, begin: int) -> int:
    """The checksum of the line that ends at `begin`; 0 if it has none, so that the next line does not fit."""
    if not begin:
        return 0
    file.seek(begin - 11)
    try:
        return sealed_lines.checksum_of(file.read(10))
    except ValueError:
        return 0


def _line_number(path: Path, offset: int) -> int:
    """The number of the line that begins at an offset."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (line := file.readline()):
            offset, number = offset - len(line), number + 1
    return number


def _cut(path: Path, num_bytes: int, expected: int) -> ResourceError:
    return ResourceError(
        f"{path}: cut after {num_bytes:,} of {expected:,} bytes, so draws or their outcomes are missing; {RESTORE}"
    )
