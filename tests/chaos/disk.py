"""A separate disk for one run. It is small enough to fill, and it can be frozen. Needs root and Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SIZE = 512 << 20


def missing() -> str:
    """Why there can be none here, or an empty string."""
    if programs := [name for name in ("mkfs.ext4", "mount", "fsfreeze") if shutil.which(name) is None]:
        return f"no {', '.join(programs)} on the PATH"
    if os.geteuid() != 0:
        return "only root mounts disks"
    return "" if Path("/dev/loop-control").exists() else "no loop devices"


class Disk:
    """An ext4 file system in a file, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave room for nothing."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            free = shutil.disk_usage(self.folder).free
            os.posix_fallocate(ballast.fileno(), 0, max(free, 1))
        with suppress(OSError), self._ballast.open("ab", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))

    def empty(self) -> None:
        """Take the ballast away."""
        self._ballast.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Have every write wait."""
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True)

    def thaw(self) -> None:
        """Let the writes go on."""
        subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """Mount a new disk at `folder`. It is removed after its last user ends."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(SIZE)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop,noatime", image, folder], check=True)
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.thaw()
        # The files of the run move from its disk to the folder below, so that people can read them.
        kept = folder.with_suffix(".kept")
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("ballast", "lost+found"), dirs_exist_ok=True)
        subprocess.run(["umount", "--lazy", folder], check=True)
        image.unlink()
        folder.rmdir()
        kept.rename(folder)
