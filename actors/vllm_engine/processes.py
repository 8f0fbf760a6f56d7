"""The processes of one engine: their environment, their core, and their end."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from olmorl.actors.vllm_engine import reaper
from olmorl.actors.vllm_engine.compat import EarlyCore, without_collecting
from olmorl.environment import not_set, variables_set
from olmorl.errors import ConfigError
from olmorl.private_folder import private_folder

DEADLINE_S = 5.0


class EngineProcesses:
    """Every process of an engine ends with `end`, or with the death of the process that owns this object.

    Args:
        notes: folder in shared memory with the list of files that `reaper.sweep` unlinks if all processes die at once.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._mark = uuid.uuid4().hex
        self._reaper: subprocess.Popen[str] | None = None
        self._known: set[psutil.Process] = set()
        self._shared_memory: set[Path] = set()
        self._early: EarlyCore | None = None

    def load(self, variables: Mapping[str, str], modules_of_core: Sequence[str]) -> None:
        """Import vLLM here and, at the same time, modules in the process that the engine core will have. Blocks.

        Without such modules no process starts.
        """
        if modules_of_core:
            with self.starting(variables):
                self._early = EarlyCore(modules_of_core)
        # Other processes start meanwhile. They get no mark.
        with variables_set(not_set(variables)), without_collecting():
            import vllm.v1.engine.async_llm  # noqa: F401

    def early_core(self) -> AbstractContextManager[None]:
        """The engine core that vLLM starts inside is the process that `load` has started, if it has."""
        return self._early.in_place_of_spawn() if self._early else nullcontext()

    @contextmanager
    def starting(self, variables: Mapping[str, str]) -> Iterator[None]:
        """Mark the processes that start inside, and give them a temporary folder, which is removed with them.

        `variables` are set for them alone, unless the operator has set them.
        """
        own, cache = reaper.own_folder(self._mark), compile_cache()
        if self._reaper is None:
            self._prepare(own, cache)
        # SPT_NOENV: the engine's processes change their titles, which would overwrite the mark.
        wanted = {
            reaper.VARIABLE: self._mark,
            "SPT_NOENV": "1",
            "VLLM_RPC_BASE_PATH": str(own),
            **({"TORCHINDUCTOR_CACHE_DIR": str(cache)} if cache.is_dir() else {}),
            **variables,
        }
        with variables_set({**not_set(wanted), "TMPDIR": str(own)}):
            yield

    def _prepare(self, own: Path, cache: Path) -> None:
        """Start the reaper, and make the temporary folder."""
        command = [sys.executable, "-I", "-S", reaper.__file__, self._mark, str(self._notes)]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        own.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):  # without a home that can be written, torch compiles in the temporary folder
            private_folder(cache)  # its files are run as code
            # torch looks for its precompiled headers below TMPDIR, even when its cache's variable is set.
            (own / cache.name).symlink_to(cache)

    def adopt(self, pids: Iterable[int]) -> None:
        """Note the processes, all their descendants and their shared memory while they can still be seen."""
        roots = _processes(pids)
        self._note(*roots, *(child for root in roots for child in root.children(recursive=True)))
        self._tell_reaper(*self._shared_memory, reaper.UP)

    def _note(self, *processes: psutil.Process) -> None:
        self._known.update(processes)
        self._shared_memory |= reaper.shared_memory([process.pid for process in self._known])

    def pin(self, core: int) -> None:
        """Keep every thread on one core: others would disturb the learner."""
        for process in self._known:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, {core})

    def end(self) -> None:
        """Kill the processes and unlink their shared memory; blocks for seconds at most. Also after a failed start."""
        if self._early is not None:
            self._early.close()
        # Some processes and some shared memory may be newer than `adopt`.
        self._note(*_processes(reaper.marked(self._mark)))
        for process in self._known:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._known, DEADLINE_S)
        for file in filter(Path.exists, self._shared_memory):
            file.unlink()
            if not str(file).startswith(reaper.TRACKED):
                continue
            # The engine's processes share this process's tracker, which would warn at its exit.
            kind = "semaphore" if file.name.startswith("sem.") else "shared_memory"
            resource_tracker.unregister("/" + file.name.removeprefix("sem."), kind)
        shutil.rmtree(reaper.own_folder(self._mark), ignore_errors=True)
        self._tell_reaper(reaper.ENDED)
        self._reaper = None

    def _tell_reaper(self, *lines: str | Path) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                self._reaper.stdin.writelines(f"{line}\n" for line in lines)
                self._reaper.stdin.flush()
            self._reaper.wait(DEADLINE_S)  # for its first process, which has started a second one


def compile_cache() -> Path:
    """Returns the folder, part of vLLM's cache, in which torch keeps what it has compiled for the next engine.

    By default torch keeps it in TMPDIR, where a run leaves nothing. Its name is the one that torch gives it there.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(os.environ.get("VLLM_CACHE_ROOT") or Path(caches, "vllm")).expanduser().absolute()
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # the user has no name on this host
        user = f"uid_{os.getuid()}"
    return root / f"torchinductor_{user}"


def check_core(core: int) -> None:
    """Raise ConfigError unless this process may run on `core`."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        raise ConfigError(
            f"core {core}: this host has no such core, or none for this process (it has {os.cpu_count()}); name others "
            "in actors.cores and learner.cores"
        ) from None
    os.sched_setaffinity(0, before)


def _processes(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
