"""The processes of one engine: their environment, their core, and their end."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from olmorl.actors import reaper

DEADLINE_S = 5.0


class EngineProcesses:
    """Whatever an engine started ends with `end`, or with the process that owns this object, however that one dies.

    Args:
        notes: folder in shared memory where is noted what `reaper.sweep` shall unlink if everything dies at once.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._mark = uuid.uuid4().hex
        self._reaper: subprocess.Popen[str] | None = None
        self._known: list[psutil.Process] | None = None
        self._shared_memory: set[Path] = set()

    @contextmanager
    def starting(self, variables: Mapping[str, str]) -> Iterator[None]:
        """Mark what starts inside. `variables` that the operator has not set hold for it, and for nothing after it."""
        command = [sys.executable, "-I", "-S", reaper.__file__, self._mark, str(self._notes)]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        # SPT_NOENV: the engine's processes change their titles, and would write them over the mark.
        wanted = {reaper.VARIABLE: self._mark, "SPT_NOENV": "1", **variables}
        added = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                del os.environ[name]

    def adopt(self, pids: Iterable[int]) -> None:
        """Note the processes, all their descendants and their shared memory while they can still be seen."""
        self._note(pids)
        self._tell_reaper(*self._shared_memory, reaper.UP)

    def _note(self, pids: Iterable[int]) -> None:
        roots = _processes(pids)
        self._known = [*roots, *(child for root in roots for child in root.children(recursive=True))]
        self._shared_memory = reaper.shared_memory([process.pid for process in self._known])

    def pin(self, core: int) -> None:
        """Keep every thread on one core: the scheduler alternates with its worker, and would disturb the learner."""
        for process in self._known or ():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, {core})

    def end(self) -> None:
        """Kill what is left and unlink its shared memory; blocks for seconds at most. Also after a failed start."""
        if self._known is None:
            self._note(reaper.marked(self._mark))
        # Again, while it can be seen: some of it was made since the start.
        self._shared_memory |= reaper.shared_memory([process.pid for process in self._known or ()])
        for process in self._known or ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._known or (), DEADLINE_S)
        for file in filter(Path.exists, self._shared_memory):
            file.unlink()
            # The engine's processes share this one's tracker, which would warn at the exit of what it still knows.
            kind = "semaphore" if file.name.startswith("sem.") else "shared_memory"
            resource_tracker.unregister("/" + file.name.removeprefix("sem."), kind)
        self._tell_reaper(reaper.ENDED)
        self._reaper = None

    def _tell_reaper(self, *lines: str | Path) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                self._reaper.stdin.writelines(f"{line}\n" for line in lines)
                self._reaper.stdin.flush()
            self._reaper.wait(DEADLINE_S)  # of its first process, which has left a second one behind


def _processes(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
