"""Changes from root to another user before bubblewrap starts, and keeps the needed files readable for that user.

Some folders admit only root. In a new mount namespace each of them is covered by an empty folder. The needed files are
mounted into it at their old paths.
"""

from __future__ import annotations

import os
from typing import Any

from olmorl.verifiers.code.inside.isolation import syscalls


def main(control: int, settings: dict[str, Any]) -> None:
    """Replace this process by the command, which inherits `control`."""
    os.set_inheritable(control, True)
    if settings["blocked"]:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "none", syscalls.MS_REC | syscalls.MS_SLAVE)
    for folder, wanted in settings["blocked"].items():
        _replace(folder, wanted)
    syscalls.become(settings["uid"])
    os.execv(settings["command"][0], settings["command"])


def _replace(folder: str, wanted: list[str]) -> None:
    """Hide a folder except for the wanted paths in it."""
    held = {path: os.open(path, os.O_PATH) for path in wanted}
    kinds = {path: os.path.isdir(path) for path in wanted}  # noqa: PTH112 - pathlib is slow to import
    syscalls.mount("tmpfs", folder, "tmpfs", syscalls.MS_NOSUID_NODEV_NOEXEC & ~8, "mode=755,size=1m")
    for path, descriptor in held.items():
        os.makedirs(path if kinds[path] else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        if not kinds[path]:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        syscalls.mount(f"/proc/self/fd/{descriptor}", path, "none", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(descriptor)
