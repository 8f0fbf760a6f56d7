"""The data folder of the embedded Redis, one for each host of a run on several hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

from olmorl.errors import ResourceError

_FILES = "appendonly*"


def newest_folder(base: Path) -> Path:
    """The folder of the last Redis. Raises ResourceError where there has been none."""
    current = base / "current"
    folder = base / current.read_text(encoding="utf-8").strip() if current.exists() else base
    if not any(folder.glob(_FILES)):
        raise ResourceError(f"{folder}: the run has left no file of its Redis there")
    return folder


def own_folder(base: Path, host: str) -> Path:
    """The folder of `host`, with a copy of what the last Redis on another host had written.

    No other host uses it. A Redis whose host is only cut off may continue to write to shared storage. It cannot damage
    the file of its successor, and its later writes are never read.
    """
    current, folder = base / "current", base / host
    last = current.read_text(encoding="utf-8").strip() if current.exists() else None
    if last != host:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)  # a folder with a file in use was not removed
        for path in (base / last).glob(_FILES) if last else ():
            if path.is_dir():
                shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
            else:
                shutil.copy2(path, folder / path.name)
        partial = current.with_suffix(".partial")
        partial.write_text(f"{host}\n", encoding="utf-8")
        partial.replace(current)
    for other in base.iterdir():
        if other.is_dir() and other.name not in (host, last):
            shutil.rmtree(other, ignore_errors=True)
    return folder
