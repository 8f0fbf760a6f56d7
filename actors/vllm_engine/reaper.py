"""Cleans up after an engine whose owner process died. A separate program: it imports only the standard library.

    python reaper.py MARK NOTES        every process of the engine has MARK in its environment

The owner holds the other end of standard input. When the engine is up, the owner writes the paths of its shared memory
there, one a line. It writes ENDED after a regular end. If standard input closes without ENDED, the owner died.
Until the engine is up, this program looks for the shared memory itself: a cluster may kill the engine's processes
together with their owner. A file made and left between two looks is recognised: it is new, and no process has it open.
A parent-death signal would not do: it follows the thread that started a process, and does not reach grandchildren.

A kill of all processes also kills this one. So it lists the files to unlink in a file of the folder NOTES, which is in
shared memory too. `sweep` unlinks them when the run starts again.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

VARIABLE = "OLMORL_ENGINE"
UP, ENDED = "up", "ended"
LOOK_S = 1.0
"""Interval between two looks for the shared memory of an engine that starts."""
TRACKED = ("/dev/shm/psm_", "/dev/shm/sem.mp-")
"""Shared memory and semaphores of `multiprocessing`."""
NAMES = (*TRACKED, "/dev/shm/vllm_dist_")
"""The same, and the memory in which the workers of a tensor-parallel engine meet on a CPU."""
_SHARED_MEMORY = Path("/dev/shm")
_IN_CREATE = 0x100
_FIRST_PIDS, _FIRST_IPC = 0xEFFFFFFC, 0xEFFFFFFF
"""The host's own namespaces, as the kernel numbers them."""
_EVENT = struct.Struct("iIII")


def own_folder(mark: str) -> Path:
    """The folder for temporary files of the engine's processes: vLLM leaves sockets and a rendezvous file."""
    return Path(tempfile.gettempdir(), f"olmorl-{mark[:12]}")


def marked(mark: str) -> list[int]:
    """Processes whose environment names the engine, without Python's resource trackers, which clean up and end."""
    wanted = f"{VARIABLE}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            tracker = b"resource_tracker" in (folder / "cmdline").read_bytes()
            if not tracker and wanted in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


def shared_memory(pids: list[int]) -> set[Path]:
    """Shared memory and semaphores that the processes have open. A killed process does not unlink them.

    They are found by their inodes: a semaphore is mapped under a name that it no longer has.
    """
    inodes: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            maps = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            inodes |= {int(fields[4]) for fields in maps if fields[-1].startswith("/dev/shm/")}
    found: set[Path] = set()
    for file in Path("/dev/shm").iterdir():
        with suppress(OSError):
            if str(file).startswith(NAMES) and file.stat().st_ino in inodes:
                found.add(file)
    return found


class SharedMemoryWatch:
    """Lists the files that any process makes in shared memory from now on; none if the kernel has no watch left."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor >= 0:
            libc.inotify_add_watch(self._descriptor, bytes(_SHARED_MEMORY), _IN_CREATE)
        self._made: set[Path] = set()

    def read_events(self) -> None:
        """Read the new files from the kernel's queue, whose length is bounded."""
        with suppress(OSError):
            while data := os.read(self._descriptor, 65536):
                while data:
                    *_, length = _EVENT.unpack_from(data)
                    name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode(errors="replace")
                    self._made.add(_SHARED_MEMORY / name)
                    data = data[_EVENT.size + length :]

    def orphans(self) -> set[Path]:
        """New files of this user with an engine's names that no process had open at two looks."""
        self.read_events()
        left = {file for file in self._made if str(file).startswith(NAMES) and _sees_all_processes()}
        for pause_s in (0.0, LOOK_S):
            if left:
                time.sleep(pause_s)
                used = shared_memory([int(folder.name) for folder in Path("/proc").glob("[0-9]*")])
                left = {file for file in left - used if _is_own(file)}
        return left


def unlink_own_semaphores() -> None:
    """Unlink the semaphores that this process has open; they work on until it ends.

    Libraries make them, for locks of progress bars for example, and leave the unlinking to a tracker process. Ray ends
    that process together with this one.
    """
    for path in shared_memory([os.getpid()]):
        if path.name.startswith("sem.mp-"):
            with suppress(FileNotFoundError):
                path.unlink()
                resource_tracker.unregister(f"/{path.name.removeprefix('sem.')}", "semaphore")


def _sees_all_processes() -> bool:
    """False in a container that has the host's shared memory, but not its processes."""
    own = Path("/proc/self/ns")
    return (own / "pid").stat().st_ino == _FIRST_PIDS or (own / "ipc").stat().st_ino != _FIRST_IPC


def _is_own(file: Path) -> bool:
    try:
        return file.stat().st_uid == os.getuid()
    except OSError:
        return False


def note(path: Path, files: set[Path]) -> None:
    """Note the files to unlink."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("".join(f"{file}\n" for file in sorted(files)), encoding="utf-8")


def sweep(folder: Path) -> None:
    """Unlink the files of engines that died together with their reapers. No engine of the run may be alive."""
    for path in folder.glob(f"{VARIABLE}-*") if _is_own(folder) else ():
        with suppress(FileNotFoundError):  # another process removed it
            for file in path.read_text(encoding="utf-8").splitlines():
                if file.startswith(NAMES):
                    Path(file).unlink(missing_ok=True)
            shutil.rmtree(own_folder(path.name.removeprefix(f"{VARIABLE}-")), ignore_errors=True)
            path.unlink()


def end(pids: list[int], files: set[Path]) -> None:
    """Kill the processes and unlink the files, if they still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for file in files:
        file.unlink(missing_ok=True)


def main() -> None:
    if os.fork():
        os._exit(0)  # an orphan in its own session survives a kill of the owner's children
    os.setsid()
    mark, said, files = sys.argv[1], "", set[Path]()
    notes, new_files = Path(sys.argv[2], f"{VARIABLE}-{mark}"), SharedMemoryWatch()
    while ENDED not in (lines := said.split("\n")):
        if UP not in lines and not select.select([sys.stdin], [], [], LOOK_S)[0]:
            new_files.read_events()
            if new := shared_memory(marked(mark)) - files:
                files |= new
                note(notes, files)
            continue
        heard = os.read(sys.stdin.fileno(), 65536).decode()
        if not heard:
            pids = marked(mark)
            files |= shared_memory(pids)
            end(pids, set())
            break
        said += heard
        if ENDED not in said.split("\n"):
            note(notes, files | named(said))
    if UP not in said.split("\n"):
        pids = marked(mark)  # the owner did not see processes that had just started
        files |= shared_memory(pids)
        end(pids, set())
        files |= new_files.orphans()
    end([], files | named(said))
    shutil.rmtree(own_folder(mark), ignore_errors=True)
    notes.unlink(missing_ok=True)
    with suppress(OSError):
        notes.parent.rmdir()  # refused while other files are in it


def named(said: str) -> set[Path]:
    """The files named in the complete lines from the owner."""
    return {Path(line) for line in said.split("\n")[:-1] if line.startswith("/")}


if __name__ == "__main__":
    main()
