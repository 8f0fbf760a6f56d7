"""Checkpoint folders: `checkpoints/step_N/`, complete only once its marker file exists.

step_50/learner.2/...    each rank's share, written by the trainers of incarnation 2
step_50/assembler.json   the assembler's part: which incarnation that was, and where the ledger stood
step_50/complete         last of all

Shares are written while the run goes on, perhaps still by a rank that nobody waits for any more: those of another
incarnation lie beside, and do not count.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec

from olmorl.errors import ResourceError, UserError
from olmorl.learner import durable
from olmorl.learner.ledger import Position

log = logging.getLogger(__name__)

MARKER = "complete"
PART = "assembler.json"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What the assembler adds. The prompt stream and all totals follow from the ledger up to `position`."""

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
    """Where the ranks of one incarnation write their shares of one step's checkpoint."""
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


def complete(checkpoints: Path, part: Part) -> None:
    """Add the assembler's part and then the marker: every rank's share is on disk. Blocks."""
    folder = folder_of(checkpoints, part.step)
    durable.write_whole(folder / PART, [msgspec.json.encode(part)])
    durable.write_whole(folder / MARKER, [])
    durable.sync_folder(checkpoints)


def read_part(checkpoints: Path, step: int) -> Part:
    """The assembler's part of a complete checkpoint. Raises ResourceError when it is missing or damaged."""
    path = folder_of(checkpoints, step) / PART
    try:
        return msgspec.json.decode(path.read_bytes(), type=Part)
    except (OSError, msgspec.MsgspecError) as error:
        raise ResourceError(
            f"{path}: missing or damaged ({error}); go back to an earlier checkpoint with --resume --from-step N"
        ) from error


def shares(checkpoints: Path, step: int) -> Path:
    """The folder of the shares that belong to a complete checkpoint."""
    return shares_of(checkpoints, step, read_part(checkpoints, step).incarnation)


def retain(checkpoints: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep`, the marker first; what cannot go now may later. Blocks."""
    for step in steps(checkpoints)[:-keep]:
        folder = folder_of(checkpoints, step)
        try:
            (folder / MARKER).unlink()
            shutil.rmtree(folder)
        except OSError as error:
            log.warning("%s cannot be removed (%s): it takes room until the next start", folder, error)


def remove_incomplete(checkpoints: Path) -> None:
    """Remove what a crash left of checkpoints that were being written or removed."""
    for folder in _folders(checkpoints):
        if not (folder / MARKER).exists():
            # What a rank that is still alive writes meanwhile may stay: it never counts.
            shutil.rmtree(folder, ignore_errors=True)


def _folders(checkpoints: Path) -> list[Path]:
    # A copy that somebody put beside them, `step_50.old`, is none of ours.
    return [folder for folder in checkpoints.glob("step_*") if folder.name.removeprefix("step_").isdecimal()]


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))
