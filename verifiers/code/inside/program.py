"""The program process. It holds the program and its arguments, and nothing else of the tests."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copy
import io
import math
import operator
import os
import random
import socket
import sys
import threading
import typing
from types import ModuleType
from typing import Any

from olmorl.verifiers.code.inside.bridge import standard_library
from olmorl.verifiers.code.inside.bridge.codec import Codec
from olmorl.verifiers.code.inside.bridge.coroutines import Coroutines
from olmorl.verifiers.code.inside.bridge.function_stubs import described
from olmorl.verifiers.code.inside.bridge.peer import Gone, MessageLink, Peer
from olmorl.verifiers.code.inside.bridge.program_handles import ProgramHandles
from olmorl.verifiers.code.inside.bridge.self_comparison import Doubt
from olmorl.verifiers.code.inside.bridge.streams import ProgramStreams

ANNOTATIONS = (
    "Any", "Callable", "DefaultDict", "Deque", "Dict", "Iterable", "Iterator", "List", "Optional", "Set", "Tuple",
    "Union",
)  # fmt: skip
"""Names that programs for an online judge use without an import, because the judge imports them."""
_EXIT_RAISED = 1


def run(end: socket.socket, role: str) -> None:
    """Receive a program and run it. Never returns."""
    link = MessageLink(end)
    try:
        text = link.receive().decode("utf-8", "surrogatepass")
    except Gone:
        os._exit(0)
    # Python's module `site` would add these, but it is not loaded.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    for name in ANNOTATIONS:
        setattr(builtins, name, getattr(typing, name))
    sys.argv = ["program.py"]
    if role == "stdio":
        end.close()
        _streams()
        _script(text)
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    _library(text, link)
    os._exit(0)


def _streams() -> None:
    sys.stdin = open(0, encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115


def _script(text: str) -> None:
    """Run the program to its end, as an interpreter would, and exit with its status."""
    status = 0
    try:
        _execute(text, ModuleType("__main__"))
    except SystemExit as stop:
        status = exit_status(stop.code)
    except BaseException as error:  # a program may raise anything
        status = _EXIT_RAISED
        _say(error)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:  # a thread or an exit function of the program may raise anything
        status = _EXIT_RAISED
        _say(error)
    os._exit(status)


def exit_status(code: Any) -> int:
    """The status of a process that ends with `SystemExit(code)`."""
    if code is None or code == 0:
        return 0
    return code & 0xFF if isinstance(code, int) else _EXIT_RAISED


def _say(error: BaseException) -> None:
    """Write one line about an error to standard error, if the error's own code allows it."""
    try:
        os.write(2, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
    except BaseException:  # the program may define any `__str__`
        return


def _execute(text: str, module: ModuleType) -> None:
    sys.modules[module.__name__] = module
    exec(compile(text, "program.py", "exec", dont_inherit=True), module.__dict__)


def _library(text: str, link: MessageLink) -> None:
    """Run the program for its definitions, then answer the requests of the tests."""
    module = ModuleType("program")
    handles, coroutines = ProgramHandles(lambda *question: ask(*question)), Coroutines()
    doubt = Doubt(handles.numbers, handles.objects)
    others: dict[str, Any] = {"outcome": coroutines.outcome, "turn": coroutines.turn, "seed": random.seed}

    def perform(verb: str, values: list[Any]) -> Any:
        if verb == "load":
            watched, nodes = values
            streams.watch(watched)
            _provide(module, nodes)
            # A main part may exit, or read input that does not exist. The definitions before it still count.
            with contextlib.suppress(SystemExit, EOFError):
                _execute(text, module)
            return None
        if verb == "find":
            found = _find(module, *values)
            doubt.found.add(id(found))
            return found
        if verb == "call":
            function, args, kwargs = values
            doubt.acts(function, (*args, *kwargs.values()))
            result = function(*args, **kwargs)
            doubt.saw(function, args, kwargs, result)
            return result
        if verb in others:
            return others[verb](*values)
        return _operation(doubt, *values)

    def answer(verb: str, values: list[Any]) -> Any:
        try:
            return perform(verb, values)
        finally:
            streams.send()

    def ask(verb: str, *values: Any) -> Any:
        streams.send()
        return peer.ask(verb, *values)

    peer = Peer(link, Codec(handles, 1), answer)
    streams = ProgramStreams(peer.ask)
    peer.serve()


def _provide(module: ModuleType, nodes: tuple[str, ...]) -> None:
    """Define the node classes of the test and of an online judge. The program may redefine them."""
    builtins.ListNode, builtins.TreeNode = ListNode, TreeNode  # type: ignore[attr-defined]
    for text in nodes:
        exec(compile(text, "test.py", "exec", dont_inherit=True), module.__dict__)


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:  # noqa: A002 - the judge's name
        self.val = val
        self.next = next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val = val
        self.left = left
        self.right = right


def _find(module: ModuleType, name: str) -> Any:
    if name in vars(module):
        return vars(module)[name]
    if name in standard_library.PROVIDED:
        return getattr(builtins, name)
    raise NameError(f"name {name!r} is not defined")


def _operation(doubt: Doubt, name: str, *operands: Any) -> Any:
    if name == "agreed":
        return doubt.agreed(*operands)
    doubt.acts(operands[0], operands[1:])
    if name in ("plain", "contains", "is_instance", "is_shared"):
        return getattr(doubt, name)(*operands)
    if name == "code":
        return described(operands[0].__code__)
    if name.startswith("__"):
        return getattr(type(operands[0]), name)(*operands)
    for home in (vars(operator), vars(builtins), vars(copy), vars(math)):
        if name in home:
            return home[name](*operands)
    raise TypeError(f"no operation {name!r}")
