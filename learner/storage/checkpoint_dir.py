"""Checkpoint folders: `checkpoints/step_N/`, complete only once its marker file exists.

step_50/learner.2/...    each rank's share, written by the trainers of incarnation 2
step_50/assembler.json   the orchestrator's part: the incarnation of the shares, and the position of the ledger
step_50/ledger.json      the state of the ledger at that position, so that a start does not read it from its first line
step_50/complete         the marker, written last

Shares are written while the run continues. A rank of an earlier incarnation may still write too: each incarnation
writes to its own folder, and only the one that the part names counts.
"""

from __future__ import annotations

import logging
import shutil
import zlib
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from olmorl.errors import ResourceError, UserError
from olmorl.learner.storage import durable_files, ledger, sealed_lines
from olmorl.learner.storage.ledger import Position
from olmorl.learner.storage.ledger_state import LedgerState, Outcome
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)

MARKER = "complete"
PART = "assembler.json"
SNAPSHOT = "ledger.json"
T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The orchestrator's part. The snapshot has the prompt stream and all totals of the ledger up to `position`."""

    step: int
    incarnation: int
    ledger_incarnation: int
    ledger_bytes: int

    @property
    def position(self) -> Position:
        return Position(self.ledger_incarnation, self.ledger_bytes)


def folder_of(checkpoints: Path, step: int) -> Path:
    """The folder of one step's checkpoint."""
    return checkpoints / f"step_{step}"


def shares_of(checkpoints: Path, step: int, incarnation: int) -> Path:
    """The folder of the shares that the ranks of one incarnation write for one step."""
    return folder_of(checkpoints, step) / f"learner.{incarnation}"


def steps(checkpoints: Path) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    return sorted(_step(folder) for folder in _folders(checkpoints) if (folder / MARKER).exists())


def pick(checkpoints: Path, wanted: int | None) -> int | None:
    """The step to resume from: `wanted`, or the newest complete one; None when there is none at all.

    Raises:
        UserError: `wanted` is not among the complete ones.
    """
    there = steps(checkpoints)
    if wanted is None:
        return there[-1] if there else None
    if wanted not in there:
        known = ", ".join(map(str, there)) or "none"
        raise UserError(f"{checkpoints}: no complete checkpoint of step {wanted}; there are: {known}")
    return wanted


def complete(checkpoints: Path, part: Part, state: LedgerState) -> None:
    """Add the orchestrator's part and the state of the ledger, then the marker. Blocks.

    Call it when every rank's share is on disk.
    """
    folder = folder_of(checkpoints, part.step)
    for name, content in ((SNAPSHOT, state), (PART, part)):
        sealed, _ = sealed_lines.seal(msgspec.json.encode(content), _name_checksum(folder / name))
        durable_files.write_whole(folder / name, [sealed])
    durable_files.write_whole(folder / MARKER, [])
    durable_files.sync_folder(checkpoints)


def read_part(checkpoints: Path, step: int) -> Part:
    """The orchestrator's part of a complete checkpoint. Raises ResourceError when it is missing or damaged."""
    folder = folder_of(checkpoints, step)
    return _read(folder / PART, Part)


def state_at(files: RunFiles, end: Position | None, step: int | None) -> LedgerState:
    """The state of the ledger at `end`, read from the snapshot of the complete checkpoint `step`, if there is one.

    Raises:
        ResourceError: the snapshot or the ledger after it is damaged.
    """
    if step is not None:
        snapshot, position = folder_of(files.checkpoints, step) / SNAPSHOT, read_part(files.checkpoints, step).position
        if end is None or (end.incarnation == position.incarnation and end < position):
            path = ledger.path_of(files.ledger, position.incarnation)
            raise ResourceError(f"{path}: cut before the checkpoint of step {step}; {ledger.RESTORE}")
        state = _read(snapshot, LedgerState)
        try:
            return ledger.fold(ledger.events_until(files.ledger, end, position), state)
        except LookupError:
            log.warning("%s is of another history; the ledger is read from its first line", snapshot)
    return ledger.fold(ledger.events_until(files.ledger, end))


def newest_state(files: RunFiles) -> LedgerState:
    """The state of the ledger now, also while the run trains. Raises ResourceError as `state_at` does."""
    step = pick(files.checkpoints, None)  # before the end: the checkpoint may be completed meanwhile
    return state_at(files, ledger.newest_end(files.ledger), step)


def newest_sound(checkpoints: Path) -> int | None:
    """The newest complete checkpoint whose own files and snapshot can be read; None if there is none."""
    for step in reversed(steps(checkpoints)):
        try:
            read_part(checkpoints, step)
            _read(folder_of(checkpoints, step) / SNAPSHOT, LedgerState)
            return step
        except ResourceError:
            continue
    return None


def _read(path: Path, kind: type[T]) -> T:
    try:
        data = path.read_bytes()
        sealed_lines.check(data, _name_checksum(path))
        return msgspec.json.decode(data, type=kind, dec_hook=_to_counter)
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"{path}: missing or damaged ({error}); go back to an earlier checkpoint with --resume --from-step N"
        ) from error


def _name_checksum(path: Path) -> int:
    """Returns the checksum before a file's only line, so that no other file passes for it."""
    return zlib.crc32(f"{path.parent.name}/{path.name}".encode())


def _to_counter(kind: type, found: Any) -> Counter[Outcome]:
    return Counter({Outcome(name): number for name, number in found.items()})


def shares(checkpoints: Path, step: int) -> Path:
    """The folder of the shares that belong to a complete checkpoint."""
    return shares_of(checkpoints, step, read_part(checkpoints, step).incarnation)


def retain(checkpoints: Path, keep: int, also: Container[int] = ()) -> None:
    """Remove all complete checkpoints but the newest `keep` and those in `also`, each marker first. Blocks."""
    for step in [step for step in steps(checkpoints)[:-keep] if step not in also]:
        folder = folder_of(checkpoints, step)
        try:
            (folder / MARKER).unlink()
            shutil.rmtree(folder)
        except OSError as error:
            log.warning("%s cannot be removed (%s): it takes room until the next start removes it", folder, error)


def remove_incomplete(checkpoints: Path) -> None:
    """Remove the folders of checkpoints without a marker: a crash interrupted their writing or their removal."""
    for folder in _folders(checkpoints):
        if not (folder / MARKER).exists():
            # A rank that is still alive may write more files here: they never count.
            shutil.rmtree(folder, ignore_errors=True)


def _folders(checkpoints: Path) -> list[Path]:
    # Leave out copies that people made, such as `step_50.old`.
    return [folder for folder in checkpoints.glob("step_*") if folder.name.removeprefix("step_").isdecimal()]


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))
