"""Makes folders in places that all users of a host share, such as /tmp and /dev/shm."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from olmorl.errors import ResourceError


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user can open, or take the one that is there.

    Raises:
        ResourceError: the folder belongs to another user, or is a link: another user could read or replace the files.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ResourceError(
            f"{folder}: it belongs to user {found.st_uid}, or is a link: ask that user or an administrator to remove "
            "it, or choose another place (run.name or run.directory; RAY_TMPDIR for Ray's files, TMPDIR for others)"
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
