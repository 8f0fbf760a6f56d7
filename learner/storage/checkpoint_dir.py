"""Checkpoint folders: `checkpoints/step_N/`, complete only once its marker file exists.

step_50/learner.2/...    each rank's share, written by the trainers of incarnation 2
step_50/assembler.json   the orchestrator's part: the incarnation of the shares, and the position of the ledger
step_50/complete         the marker, written last

Shares are written while the run continues. A rank of an earlier incarnation may still write too: each incarnation
writes to its own folder, and only the one that the part names counts.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec

from olmorl.errors import ResourceError, UserError
from olmorl.learner.storage import durable_files
from olmorl.learner.storage.ledger import Position

log = logging.getLogger(__name__)

MARKER = "complete"
PART = "assembler.json"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The orchestrator's part. The prompt stream and all totals are rebuilt from the ledger up to `position`."""

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


def complete(checkpoints: Path, part: Part) -> None:
    """Add the orchestrator's part, then the marker. Call it when every rank's share is on disk. Blocks."""
    folder = folder_of(checkpoints, part.step)
    durable_files.write_whole(folder / PART, [msgspec.json.encode(part)])
    durable_files.write_whole(folder / MARKER, [])
    durable_files.sync_folder(checkpoints)


def read_part(checkpoints: Path, step: int) -> Part:
    """The orchestrator's part of a complete checkpoint. Raises ResourceError when it is missing or damaged."""
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
    """Remove all complete checkpoints but the newest `keep`, each marker first. Blocks."""
    for step in steps(checkpoints)[:-keep]:
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
