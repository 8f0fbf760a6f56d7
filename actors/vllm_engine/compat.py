"""What the engine needs of vLLM that has no documented door. `test_compat.py` fails by name where vLLM changed.

Each entry says why it is needed. All other files use what vLLM documents. Importing this file imports no vLLM.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys
from argparse import Action, ArgumentParser
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn


def command_line() -> tuple[ArgumentParser, Mapping[str, Action]]:
    """Returns the parser of vLLM's command line, which raises ValueError, and its options by name.

    Only this parser reads a value of `actors.vllm` as vLLM does, and argparse lists options in `_actions` alone.
    """
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise ValueError(message)

    parser: ArgumentParser = AsyncEngineArgs.add_cli_args(Parser(exit_on_error=False, add_help=False))
    return parser, {action.dest: action for action in parser._actions}


def core_pids(llm: Any) -> list[int]:
    """Returns the processes of vLLM's engine core. They are pinned to a core, and killed if vLLM does not end them."""
    return [process.pid for process in llm.engine_core.resources.engine_manager.processes]


def follower_executor(vllm_config: Any) -> Any:
    """Returns the workers of a node that has no scheduler, once all nodes have loaded the model.

    vLLM starts them only from its command line, which handles signals and ends the process itself.
    """
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    return MultiprocExecutor(vllm_config, monitor_workers=False)


def unfinished(llm: Any, request_id: str | None = None) -> Sequence[Any]:
    """Returns vLLM's state of all unfinished requests, or of one: how far they are is part of the actor's figures."""
    states, names = llm.output_processor.request_states, llm.output_processor.external_req_ids
    return list(states.values()) if request_id is None else [states[name] for name in names.get(request_id, ())]


def packs_experts(layer: Any) -> bool:
    """Whether the CPU back end multiplies by packed copies of this layer's experts."""
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    method = getattr(layer, "quant_method", None)
    return isinstance(method, UnquantizedFusedMoEMethod) and method.unquantized_backend == UnquantizedMoeBackend.CPU


def pack_experts(layer: Any) -> None:
    """Pack the experts of a layer again: vLLM's reload leaves the packed copies at the version before."""
    layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)


# --- the process of an engine core, started before its work is known --------------------------------
#
# vLLM starts EngineCore with multiprocessing's `spawn`, after its own imports, and that process imports vLLM again.
# Here the second import runs at the same time as the first: an actor's engine answers after 26 instead of 45 s
# (benchmarks/results/start_up.json). vLLM has no option for a process of our own. This one is as `spawn` starts it.

_LENGTH_BYTES = 8


def anthropic_message(answered: Any) -> Any:
    """Returns vLLM's answer of OpenAI's chat API as one of Anthropic's messages API.

    The converters are methods of a server, which needs an engine of its own; they use none of it.
    """
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    return AnthropicServingMessages.messages_full_converter(None, answered)


def anthropic_events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Returns the stream of OpenAI's chat API as the events of Anthropic's messages API."""
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    events: AsyncIterator[str] = AnthropicServingMessages.message_stream_converter(None, lines)
    return events


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
