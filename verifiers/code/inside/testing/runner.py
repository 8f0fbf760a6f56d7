"""Runs one test in the test process. Only the program's objects are in the other process."""

from __future__ import annotations

import ast
import builtins
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from olmorl.verifiers.code.inside.bridge.codec import Codec, CodecError
from olmorl.verifiers.code.inside.bridge.expected_objects import ExpectedObjects
from olmorl.verifiers.code.inside.bridge.peer import Gone, MessageLink, Peer
from olmorl.verifiers.code.inside.bridge.remote import Remote, RemoteClass, Unsupported
from olmorl.verifiers.code.inside.bridge.streams import TesterStreams
from olmorl.verifiers.code.inside.bridge.tester_handles import TEST, TesterHandles
from olmorl.verifiers.code.inside.testing import collection, pytest_stand_in
from olmorl.verifiers.code.inside.testing.coverage import LOOP, Coverage
from olmorl.verifiers.code.inside.testing.name_lookup import NameLookup
from olmorl.verifiers.code.inside.testing.name_uses import PROGRAM_MODULES, NameUses, watched_streams

NODES = ("ListNode", "TreeNode", "Node")
"""Classes of an online judge. If a test defines one, the program process creates its objects."""
Ask = Callable[..., Any]
_DIGITS = 200_000
"""The longest integer that a test writes as text. A program that raises its own limit returns such integers."""


def judge(
    link: MessageLink, program: bytes, test: str, expected: ExpectedObjects, max_characters: int
) -> tuple[str, str]:
    """Load the program and run one test against it.

    Args:
        expected: told of the objects that the test makes with classes of the program.
        max_characters: the most characters that the program may print, if the test watches its output.

    Returns:
        `passed`, `failed`, `memory`, `output`, `gone` (the program process ended) or `label`, with one line of detail.
    """
    imports, watching = TesterHandles(), TesterStreams(max_characters)

    def perform(verb: str, values: list[Any]) -> Any:
        if verb == "call back":
            return imports.call_back(*values)
        if verb == "outcome":
            return imports.outcome(*values)
        try:
            return watching.perform(verb, values)
        except LookupError:
            raise CodecError(f"unknown request {verb!r}") from None

    peer = imports.peer = Peer(link, Codec(imports, 0), perform)
    peer.expected = expected
    try:
        test_run = TestRun(test, peer)
        imports.has_assertion = test_run.coverage.has_assertion
        link.send(program)
        outcome = test_run.run()
    except SyntaxError as error:
        return "label", f"the test does not parse: {error}"
    except Gone as error:
        return "gone", str(error)
    if watching.flooded:
        return "output", "the program printed too much"
    if outcome[0] == "passed" and imports.unheard and "AssertionError" not in test:
        outcome = "failed", "an assertion in a function that the program was given did not hold, or did not run"
    return ("label", imports.unsupported) if imports.unsupported else outcome


class TestRun:
    """Runs one test. The test passes only if the program has every name that the test calls."""

    __test__ = False

    def __init__(self, test: str, peer: Peer) -> None:
        """Parse the test. Raises SyntaxError."""
        self._peer = peer
        tree = ast.parse(test)
        self._tree = _TypeByName().visit(tree) if "__class__" in test else tree
        self._uses = NameUses(test, self._tree)
        self._watched = watched_streams(test, self._uses)
        self._nodes = _nodes(self._tree)
        self._uses.bound -= self._nodes.keys()
        self._names = NameLookup(self._uses, self._find)
        self.coverage = Coverage(self._tree)
        self._names[LOOP] = self.coverage.loop
        self._names["__import__"] = self._import
        peer.missed, peer.skips = self._names.lacks, self.coverage.skips

    def run(self) -> tuple[str, str]:
        """Load the program, run the test, and return its outcome. Raises Gone."""
        try:
            self._peer.ask("load", tuple(self._watched), tuple(self._nodes.values()))
        except Gone:
            raise
        except BaseException as error:  # a program may raise anything
            return _ended(error, "the program does not load: ")
        sys.modules["pytest"] = pytest_stand_in
        sys.set_int_max_str_digits(_DIGITS)
        random.seed = _seeding(self._peer)
        try:
            self._execute()
        except Unsupported as error:
            return "label", str(error)
        except Gone:
            raise
        except BaseException as error:  # a test may end with any exception, its own or the program's
            return _ended(error)
        if self._peer.gone:
            return "failed", "the program process ended"
        if self._names.fault:
            return "failed", self._names.fault
        if 0 in self.coverage.turns:
            return "failed", "a loop with an assertion had no turn"
        return ("passed", "") if self._names.found else ("label", "the test uses nothing of the program")

    def _execute(self) -> None:
        names: dict[str, Any] = {"__builtins__": self._names, "__name__": TEST}
        exec(compile(self._tree, "test.py", "exec", dont_inherit=True), names)
        collection.run(names, self._uses)

    def _find(self, name: str) -> Any:
        found = self._peer.ask("find", name)
        if isinstance(found, Remote):
            object.__setattr__(found, "_remote_name", name)
            if not isinstance(found, RemoteClass):
                object.__setattr__(found, "_remote_born", 0)  # what the program defines is older than its answers
        return found

    def _import(self, name: str, names: Any = None, local: Any = None, members: Any = (), level: int = 0) -> Any:
        """The `import` of the test. A failed import in a program is a failure of the program instead."""
        if level > 0 or name in PROGRAM_MODULES:
            known = sys.modules.get(name)
            if not isinstance(known, ProgramModule):
                known = sys.modules[name] = ProgramModule(name, self._names)
            return known
        try:
            found = __import__(name, names, local, members, level)
        except ModuleNotFoundError as error:
            raise ModuleMissing(f"the test imports {name}: {error}") from None
        if name.startswith("unittest"):
            vars(sys.modules["unittest"])["main"] = pytest_stand_in.unittest_main
        absent = [member for member in members or () if member != "*" and not hasattr(found, member)]
        if absent:
            raise ModuleMissing(f"the test imports {', '.join(absent)} from {name}, which has no such name")
        return found


class ModuleMissing(Unsupported, ImportError):
    """The test imports a missing module, so no program can be judged with it."""


class ProgramModule(ModuleType):
    """The program as a module, for tests that import it. Each name is looked up at each use."""

    __all__ = ()

    def __init__(self, name: str, names: NameLookup) -> None:
        super().__init__(name)
        vars(self)["_names"] = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PATCHED:
            return getattr(builtins, name)
        try:
            return vars(self)["_names"].of_program(name)
        except NameError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _PATCHED:
            raise Unsupported(f"the test replaces {name} of the program, which is not supported")
        setattr(builtins, name, value)

    def __delattr__(self, name: str) -> None:
        setattr(builtins, name, _PATCHED[name])


_PATCHED = {"input": input, "print": print}
"""The functions that a test may replace in the program. Their calls then go to the test."""


class _TypeByName(ast.NodeTransformer):
    """Writes `x.__class__` as `type(x)`, which a test finds in `NameLookup`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "__class__" or not isinstance(node.ctx, ast.Load):
            return node
        call = ast.Call(ast.Name("type", ast.Load()), [node.value], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _nodes(tree: ast.Module) -> dict[str, str]:
    """Remove the plain node classes from a test. Returns their sources by name."""
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in NODES and not node.bases]
    tree.body = [node for node in tree.body if node not in found]
    return {node.name: ast.unparse(node) for node in found}


def _seeding(peer: Peer) -> Ask:
    """`random.seed` for both processes."""
    seed = random.seed

    def seeding(*args: Any, **kwargs: Any) -> None:
        seed(*args, **kwargs)
        peer.ask("seed", *args, *kwargs.values())

    return seeding


def _ended(error: BaseException, where: str = "") -> tuple[str, str]:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return "memory" if isinstance(error, MemoryError) else "failed", where + text.rstrip(": ")
