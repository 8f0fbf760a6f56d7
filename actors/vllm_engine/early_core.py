"""The process of an engine core, started before its work is known: it imports vLLM while the actor does the same.

vLLM starts EngineCore with multiprocessing's `spawn`, after its own imports, and that process imports vLLM again. Here
the second import runs at the same time as the first. The process is as `spawn` would start it: a fresh interpreter.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any

_LENGTH_BYTES = 8


class EarlyCore:
    """A child process that imports modules, then takes the place of the next process that vLLM spawns.

    It ends when this process does. It gets the environment of the moment in which the work is there. Only the libraries
    of LD_PRELOAD are loaded before: if they are others by then, a new process does the work.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        tracker = resource_tracker.getfd()
        assert tracker is not None
        work, self._work = os.pipe()
        self._alive, alive = os.pipe()
        program = f"import sys; sys.path[:] = {sys.path}; from {__name__} import wait_for_work; "
        program += f"wait_for_work({list(modules)}, {tracker}, {work})"
        # multiprocessing looks for its own flag among the arguments of its children.
        command = [sys.executable, *_interpreter_options(), "-c", program, "--multiprocessing-fork"]
        self.pid = util.spawnv_passfds(os.fsencode(sys.executable), command, [tracker, work, alive])
        os.close(work)
        os.close(alive)
        self._preloaded = os.environ.get("LD_PRELOAD")
        self._is_free = True

    @contextmanager
    def in_place_of_spawn(self) -> Iterator[None]:
        """The first process that vLLM spawns inside is this one, unless it has ended."""
        from vllm.v1.engine import utils

        before = utils.get_mp_context
        utils.get_mp_context = self.context
        try:
            yield
        finally:
            utils.get_mp_context = before

    def context(self) -> context.SpawnContext:
        """multiprocessing's `spawn`, whose next process is this one, unless it has ended."""
        return _Context(self)

    def close(self) -> None:
        """Let the process end if it has no work."""
        if self._is_free:
            self._is_free = False
            os.close(self._work)
            os.close(self._alive)

    def popen(self, process: BaseProcess) -> Any:
        """The running process that does the work of `process`: this one, or else a new one."""
        del process.__dict__["_Popen"]  # it is not for the child
        if self._is_free and self._is_alive() and os.environ.get("LD_PRELOAD") == self._preloaded:
            self._is_free = False
            return _Popen(process, self._work, self._alive, self.pid)
        return popen_spawn_posix.Popen(process)

    def _is_alive(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False


class _Context(context.SpawnContext):
    """Its processes ask an early core first."""

    def __init__(self, early: EarlyCore) -> None:
        self._early = early

    def Process(self, *args: Any, **kwargs: Any) -> context.SpawnProcess:  # type: ignore[override]
        process = context.SpawnProcess(*args, **kwargs)
        process.__dict__["_Popen"] = self._early.popen
        return process


class _Popen(popen_spawn_posix.Popen):
    """Hands work to a waiting process, as the base class does to a new one."""

    def __init__(self, process: BaseProcess, work: int, alive: int, pid: int) -> None:
        self._work, self._alive, self._early_pid = work, alive, pid
        super().__init__(process)

    def _launch(self, process: BaseProcess) -> None:
        written = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), written)
            reduction.dump(process, written)
        finally:
            context.set_spawning_popen(None)
        if self._fds:  # only a new process can inherit file descriptors
            self._fds: list[int] = []
            util.close_fds(self._work, self._alive)  # type: ignore[attr-defined]
            super()._launch(process)  # type: ignore[misc]
            return
        environment = pickle.dumps(dict(os.environ))
        self.pid, self.sentinel = self._early_pid, self._alive
        self.finalizer = util.Finalize(self, util.close_fds, (self._alive, self._work))  # type: ignore[attr-defined]
        with open(self._work, "wb", closefd=False) as pipe, suppress(BrokenPipeError):
            pipe.write(len(environment).to_bytes(_LENGTH_BYTES) + environment + written.getbuffer())


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import large modules inside. The garbage collector leaves their objects alone, also afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def wait_for_work(modules: Sequence[str], tracker: int, work: int) -> None:
    """Import the modules, then do the work that comes through the descriptor `work`. Ends if none can come."""
    with without_collecting():
        for module in modules:
            import_module(module)
    with suppress(ImportError):  # vLLM sets a title if it can
        import setproctitle

        setproctitle.getproctitle()  # it finds the memory of the title beside the environment, as long as that is there
    length = int.from_bytes(_read(work, _LENGTH_BYTES))
    os.environ.clear()
    os.environ.update(pickle.loads(_read(work, length)))  # from the parent process
    spawn.spawn_main(tracker_fd=tracker, pipe_handle=work)


def _read(descriptor: int, length: int) -> bytes:
    """Exactly `length` bytes. multiprocessing reads the rest."""
    found = b""
    while len(found) < length:
        if not (more := os.read(descriptor, length - len(found))):
            sys.exit()  # the parent has ended
        found += more
    return found


def _interpreter_options() -> list[str]:
    """The options of this interpreter, which its children get too."""
    return list(util._args_from_interpreter_flags())  # type: ignore[attr-defined]
