"""Checkpoint folders changed by people or a bad disk. `test_accounting` has the folders that the service leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from olmorl.errors import ResourceError
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import MARKER, PART, Part
from olmorl.learner.storage.ledger_state import LedgerState


def write(checkpoints: Path, *steps: int) -> None:
    for step in steps:
        checkpoint_dir.shares_of(checkpoints, step, incarnation=1).mkdir(parents=True)
        part = Part(step=step, incarnation=1, ledger_incarnation=1, ledger_bytes=10 * step)
        checkpoint_dir.complete(checkpoints, part, LedgerState())


def test_copies_that_people_made_are_neither_taken_nor_removed(tmp_path: Path) -> None:
    write(tmp_path, 4)
    for name in ("step_4.old", "step_best"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_best" / MARKER).touch()
    assert checkpoint_dir.steps(tmp_path) == [4]
    checkpoint_dir.remove_incomplete(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_4.old", "step_best"]


@pytest.mark.parametrize("left", [None, b"", b'{"step": 4, "incar', b"{}"])
def test_a_damaged_part_is_named_with_the_way_out(tmp_path: Path, left: bytes | None) -> None:
    write(tmp_path, 4)
    part = tmp_path / "step_4" / PART
    if left is None:
        part.unlink()
    else:
        part.write_bytes(left)
    with pytest.raises(ResourceError, match=r"step_4/assembler\.json: missing or damaged .* --from-step"):
        checkpoint_dir.shares(tmp_path, 4)
