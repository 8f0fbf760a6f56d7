"""The process that exports a checkpoint while the run trains: the orchestrator's handle of it, and its program."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from olmorl.errors import OlmoRLError, ResourceError, unwritable
from olmorl.parent_death import die_with_parent
from olmorl.run_dir import RunFiles

_NICENESS = 10
"""The learner and the engines come first."""


async def export_step(run_dir: Path, step: int) -> None:
    """Write the checkpoint of `step` to its folder in `exports/`, in a process of its own.

    Raises:
        ResourceError: it could not be exported.
    """
    _prepare(RunFiles(run_dir).export_of(step))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(run_dir), str(step), str(os.getpid())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        _, errors = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        _prepare(RunFiles(run_dir).export_of(step))
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ResourceError(lines[-1] if lines else f"the process that exports ended with {process.returncode}")


def _prepare(folder: Path) -> None:
    """Make the folder around an export, and remove what a killed export has left there."""
    try:
        folder.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder.parent, error) from None
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def main(run_dir: str, step: str, parent: str) -> int:
    """Export one checkpoint; the process ends with its parent."""
    die_with_parent(int(parent))
    os.nice(_NICENESS)
    from olmorl.learner.trainer.export import export

    try:
        export(Path(run_dir), int(step), RunFiles(Path(run_dir)).export_of(int(step)))
    except OlmoRLError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
