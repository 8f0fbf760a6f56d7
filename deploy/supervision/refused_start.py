"""Restores the run's folder after a refused start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from olmorl.deploy.supervision.run_lock import RunLock
from olmorl.errors import UserError
from olmorl.learner.storage import ledger
from olmorl.run_dir import RunFiles


def check_can_be_made(folder: Path) -> None:
    """Make a folder and remove it again. Raises OSError where it cannot be made."""
    missing = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_empty(missing)


@contextmanager
def left_as_found(run_dir: Path, *, always: bool) -> Iterator[None]:
    """Remove a run directory that was made inside: `always`, or only after an error.

    An older directory stays. So does a directory in which a run has begun, or that another launcher holds.
    """
    missing = _missing(run_dir)
    failed = True
    try:
        yield
        failed = False
    finally:
        if run_dir in missing and (failed or always) and run_dir.exists():
            _remove_unless_begun(run_dir)
            _remove_empty(missing)


def _remove_unless_begun(run_dir: Path) -> None:
    with suppress(UserError), RunLock(run_dir):
        if not ledger.incarnations(RunFiles(run_dir).ledger):
            shutil.rmtree(run_dir, ignore_errors=True)


def _missing(folder: Path) -> list[Path]:
    return [one for one in (folder, *folder.parents) if not one.exists()]


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
